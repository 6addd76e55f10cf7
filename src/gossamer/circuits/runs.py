"""The folder a circuit is written to: another run is never overwritten, an interrupted one goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.circuits.circuit import FILES, SUMMARY
from gossamer.circuits.parts import Parts, write_whole
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

PARTS = "parts"
REQUEST = "request.json"


def request(model: Model, prompts: Prompts, settings: dict[str, Any]) -> dict[str, Any]:
    """All that decides the result: an interrupted run goes on only if this is the same."""
    tokens = repr([(pair.clean, pair.corrupted, pair.answers, pair.wrong) for pair in prompts.pairs])
    return {
        "model": model.describe(),
        "task": prompts.task,
        "prompts": len(prompts),
        "prompts_sha256": hashlib.sha256(tokens.encode()).hexdigest(),
        **settings,
    }


@contextmanager
def run_folder(folder: Path, asked: dict[str, Any], *, force: bool) -> Iterator[Parts]:
    """Make `folder` ready for a run and hand over the parts that an interrupted one left there.

    If the block refuses its input (GossamerError), a run that is new leaves nothing behind; if it is interrupted, the
    finished parts stay for the next time.

    Raises:
        GossamerError: the folder holds another run, or files that are none of ours.
    """
    existed = folder.exists()
    begun = read_request(folder)
    resuming = begun == asked and not (folder / SUMMARY).exists()
    if not resuming:
        make_room(folder, begun, asked, force=force)
    parts = folder / PARTS
    try:
        parts.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asked, indent=2, ensure_ascii=False)
        write_whole(parts / REQUEST, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise GossamerError(f"could not write to {folder}: {error.strerror}") from error
    try:
        yield Parts(parts)
    except GossamerError:
        if not resuming:
            shutil.rmtree(parts)
            if not existed:
                folder.rmdir()
        raise
    shutil.rmtree(parts)


def read_request(folder: Path) -> Any:
    try:
        return json.loads((folder / PARTS / REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def make_room(folder: Path, begun: Any, asked: dict[str, Any], *, force: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise GossamerError(f"{folder} is a file: give a folder to write to")
    strangers = [path.name for path in folder.iterdir() if path.name not in (*FILES, PARTS)]
    if strangers and not (folder / SUMMARY).exists() and begun is None:
        raise GossamerError(f"{folder} holds other files ({sorted(strangers)[0]}): give a new or empty folder")
    if not force:
        if (folder / SUMMARY).exists():
            raise GossamerError(f"{folder} holds a finished run: give another folder, or --force to replace it")
        if isinstance(begun, dict):
            differing = sorted(key for key in {*begun, *asked} if begun.get(key) != asked.get(key))
            raise GossamerError(
                f"{folder} holds an unfinished run with another {', '.join(differing)}: give another folder, or "
                "--force to replace it"
            )
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
