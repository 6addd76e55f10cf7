"""Files that are there whole or not at all, and folders that one process writes to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

from gossamer.errors import GossamerError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it in place: the file is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        usual = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(usual)  # safetensors keeps its files to oneself
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder beside `path`, then put it in place."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        plain = temporary.stat().st_mode & 0o666  # what the user lets others do
        for file in filter(Path.is_file, temporary.rglob("*")):
            file.chmod(plain)
            with file.open("rb") as opened:  # a power cut must not leave empty files
                os.fsync(opened.fileno())
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def only_process(path: Path, folder: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends."""
    with path.open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise GossamerError(f"another process is writing to {folder}: wait, or give another folder") from error
        yield
