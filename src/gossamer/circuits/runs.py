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
from gossamer.circuits.parts import Parts
from gossamer.errors import GossamerError, OutOfMemory
from gossamer.files import only_process, write_text
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
        "metric": prompts.metric,
        "prompts": len(prompts),
        "prompts_sha256": hashlib.sha256(tokens.encode()).hexdigest(),
        **settings,
    }


@contextmanager
def run_folder(folder: Path, asked: dict[str, Any], *, force: bool) -> Iterator[Parts]:
    """Make `folder` ready for a run and hand over the parts that an interrupted one left there.

    A finished run in the folder stays until the new one is saved. If the block refuses its input (GossamerError), a new
    run leaves nothing behind; if it is interrupted or runs out of memory, the finished parts stay for the next time.

    Raises:
        GossamerError: the folder holds another run or files that are none of ours, or another process writes to it.
    """
    begun = read_request(folder)
    check_free(folder, begun, asked, force=force)
    new = [path for path in (folder, *folder.parents) if not path.exists()]  # what we create, innermost first
    parts = folder / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    with only_process(parts / "lock", folder):
        resuming = begun == asked
        if not resuming:
            for path in parts.glob("*.safetensors"):
                path.unlink()
        text = json.dumps(asked, indent=2, ensure_ascii=False)
        write_text(parts / REQUEST, text)
        try:
            yield Parts(parts)
        except OutOfMemory:
            raise
        except GossamerError:
            if not resuming:
                shutil.rmtree(parts)
                for path in new:
                    path.rmdir()
            raise
        shutil.rmtree(parts)


def read_request(folder: Path) -> Any:
    try:
        return json.loads((folder / PARTS / REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def check_free(folder: Path, begun: Any, asked: dict[str, Any], *, force: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise GossamerError(f"{folder} is a file: give a folder to write to")
    finished = (folder / SUMMARY).exists()
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in (*FILES, PARTS))
    if strangers and not finished and begun is None:
        raise GossamerError(f"{folder} holds other files ({strangers[0]}): give a new or empty folder")
    if force:
        return
    if finished:
        raise GossamerError(f"{folder} holds a finished run: give another folder, or --force to replace it")
    if isinstance(begun, dict) and begun != asked:
        differing = sorted(key for key in {*begun, *asked} if begun.get(key) != asked.get(key))
        raise GossamerError(
            f"{folder} holds an unfinished run that was asked otherwise ({', '.join(differing)}): give another "
            "folder, or --force to replace it"
        )
