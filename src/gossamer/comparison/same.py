"""A run goes on with the models that it began with, dense, sparse and fine-tuned.

RUN/models.json tells what the files of each looked like (name, size, time of change) when its weights were last seen to
be those of the run's circuits. As long as they look like that, a part that is finished needs no model to be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.circuits.circuit import SUMMARY
from gossamer.comparison.controls import FOLDER, NO_EFFECT
from gossamer.comparison.stored import Stored
from gossamer.errors import GossamerError
from gossamer.files import read_json, write_text
from gossamer.models import Model, find_folder

FILE = "models.json"


class Seen:
    """What is known of a run's models."""

    def __init__(self, run: Path) -> None:
        self.path = run / FILE
        self.looks = read_json(self.path) or {}

    def keep(self, name: str, looks: list[list[Any]]) -> None:
        """`looks` is from before the model was loaded: what changed since is seen next time."""
        self.looks[name] = looks
        write_text(self.path, json.dumps(self.looks, indent=2) + "\n")


def look(name: str) -> list[list[Any]]:
    """Of a model's files, in a form that json gives back; nothing of a model on the hub, which has its revision."""
    folder = find_folder(name)
    if folder is None:
        return []
    inside = [folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("adapter/*.safetensors")]
    files = [folder] if folder.is_file() else sorted(path for path in inside if path.exists())
    return [[str(path), (stat := path.stat()).st_size, stat.st_mtime_ns] for path in files]


def check_same_model(model: Model, panel: Path, side: str) -> None:
    """Refuse to add to circuits that are of other weights."""
    weights = model.fingerprint()
    for folder, own in weights_in(panel, side):
        if own != weights:
            raise GossamerError(f"{folder} is of a {model.name} with other weights: --force does all of it again")


def weights_in(panel: Path, side: str) -> Iterator[tuple[Path, str]]:
    """The finished circuits of a model on one task, and what has none, with the fingerprint of its weights."""
    folders = sorted(panel.glob(f"{FOLDER}/tuned-*" if side == "tuned" else f"{side}/*"))
    for folder in folders:
        if (folder / SUMMARY).exists():
            yield folder, Stored.read(folder).summary["model"]["weights"]
        elif (told := read_json(folder / NO_EFFECT)) is not None and "weights" in told:
            yield folder, told["weights"]
