"""The folder of a run: whether one may begin or go on in it, and that no other process writes to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError
from gossamer.files import only_process
from gossamer.training.checkpoint import FOLDER
from gossamer.training.folder import CARD, CONFIG, RESULT
from gossamer.training.settings import differing, option
from gossamer.training.train import LOG

REQUEST = "request.json"
PLOT = "training.png"


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Hold the folder. If what was asked is refused before training begins, nothing of ours is left in it."""
    new = [path for path in (out / FOLDER, out, *out.parents) if not path.exists()]  # innermost first
    checkpoints = out / FOLDER
    checkpoints.mkdir(parents=True, exist_ok=True)
    with only_process(checkpoints / "lock", out):
        try:
            yield
        except Exception:
            if not (checkpoints / REQUEST).exists():
                shutil.rmtree(checkpoints)
                for path in new[1:]:
                    path.rmdir()
            raise


def read_request(out: Path) -> dict[str, Any] | None:
    """What the run in the folder was asked; nothing, if that can't be read."""
    path = out / FOLDER / REQUEST
    try:
        request = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError):
        return {}
    return request if request is None or isinstance(request, dict) else {}


def check_folder(out: Path, begun: dict[str, Any] | None, *, resume: bool, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise GossamerError(f"{out} is a file: give a folder to write to")
    if not out.exists() or (begun is not None and resume):
        return
    finished = (out / RESULT).exists()
    if resume and finished:
        raise GossamerError(f"{out} holds a finished run that met its bound: there is nothing to resume")
    if force and (finished or begun is not None):
        return
    if finished:
        raise GossamerError(f"{out} holds a finished run: give another folder, or --force to replace it")
    if begun is not None:
        raise GossamerError(f"{out} holds an unfinished run: --resume goes on with it, --force begins anew")
    if strangers := sorted(path.name for path in out.iterdir() if path.name != FOLDER):
        raise GossamerError(f"{out} holds other files ({strangers[0]}): give a new or empty folder")


def refuse_others(begun: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    """A run goes on with the same settings only; but it may be made longer, and its adapters merged or not."""
    if not begun.keys() >= asked.keys():
        raise GossamerError(f"{out / FOLDER / REQUEST} can't be read, or is of another version: --force begins anew")
    before, now = ({**request, **request["model"]} for request in (begun, asked))
    odd = [key for key in differing(before, now) if key not in ("steps", "merge", "model")]
    if now["steps"] < before["steps"]:
        odd.append("steps")
    if odd:
        names = {key: f"the model's {key}" if key in asked["model"] else option(key) for key in odd}
        told = ", ".join(f"{names[key]} {before.get(key)!r} then, {now.get(key)!r} now" for key in odd)
        raise GossamerError(f"{out} holds a run with other settings ({told}): give the same, or another folder")


def clear(out: Path) -> None:
    """Remove what an earlier run left, the configuration first: half a model must not load."""
    ours = (CONFIG, RESULT, CARD, LOG, PLOT, "*.safetensors*", "adapter", "generation_config.json", f"{FOLDER}/*-*")
    for pattern in ours:
        for path in out.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
