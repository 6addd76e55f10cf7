"""Documents from a text, jsonl or parquet file, or from a hub data set."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.bundled import text
from gossamer.errors import GossamerError

END = "<|endoftext|>"  # alone on a line, it ends a document of a text file
SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".json.gz", ".parquet")  # .json.gz: as Dolma names its lines


@dataclass(frozen=True, eq=False)
class Documents:
    """Call it for the documents from the n-th on, always in the same order."""

    name: str
    identity: str  # tells data sets apart: a resumed run must go on with the same
    read: Callable[[int], Iterator[str]]

    def __call__(self, skip: int = 0) -> Iterator[str]:
        return self.read(skip)


def documents(data: str, *, column: str = "text") -> Documents:
    """Open `data`: a file, or a hub data set id, "name" or "name:configuration", whose training split is streamed."""
    if not data.strip():
        raise GossamerError("--data is empty: give a file, a hub data set id, self or bundled")
    path = Path(data).expanduser()
    if path.is_dir():
        raise GossamerError(f"--data {data} is a folder: give one of its files ({', '.join(SUFFIXES)})")
    if path.exists() or data.endswith(SUFFIXES) or data.startswith((".", "/", "~")):
        return from_file(path, column)
    return from_hub(data, column)


def bundled(mix: str) -> Documents:
    """The generated text that a bundled model was trained on: it has no end."""
    return Documents("bundled", f"bundled {mix} {text.VERSION}", lambda skip: text.documents(mix, skip))


def from_file(path: Path, column: str) -> Documents:
    if not path.exists():
        raise GossamerError(f"--data {path}: there is no such file")
    if path.stat().st_size == 0:
        raise GossamerError(f"--data {path} is empty")
    name = path.name.lower()
    read: Callable[[Path, str], Iterator[str]]
    if name.endswith((".txt", ".txt.gz")):
        read = text_documents
    elif name.endswith((".jsonl", ".jsonl.gz", ".json.gz")):
        read = json_documents
    elif name.endswith(".parquet"):
        read = parquet_documents
    else:
        raise GossamerError(f"--data {path}: don't know this kind of file; give {', '.join(SUFFIXES)} or a hub id")

    def documents(skip: int) -> Iterator[str]:
        try:
            yield from itertools.islice(read(path, column), skip, None)
        except (OSError, EOFError, UnicodeDecodeError, ValueError) as error:
            if isinstance(error, GossamerError):
                raise
            raise GossamerError(f"--data {path} can't be read: {' '.join(str(error).split())[:200]}") from error

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return Documents(str(path), f"{path.name} {path.stat().st_size} {digest} {column}", documents)


def lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:  # some editors begin a file with a mark
        yield from file


def text_documents(path: Path, _column: str) -> Iterator[str]:
    """A whole text file, or its parts between lines of `<|endoftext|>`."""
    for ends, group in itertools.groupby(lines(path), key=lambda line: line.strip() == END):
        if not ends:
            yield "".join(group).strip("\n")


def json_documents(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[column]
        except (ValueError, KeyError, TypeError) as error:
            raise GossamerError(
                f"{path}, line {number}: not a JSON object with {column!r} ({error}); name another with --column"
            ) from error
        yield check_text(text, f"{path}, line {number}", column)


def parquet_documents(path: Path, column: str) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        if column not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise GossamerError(f"{path} has no column {column!r}, but {names}: name one with --column")
        number = 0
        for batch in file.iter_batches(batch_size=1000, columns=[column]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield check_text(text, f"{path}, row {number}", column)


def check_text(text: Any, where: str, column: str) -> str:
    if not isinstance(text, str):
        raise GossamerError(f"{where}: {column!r} is {type(text).__name__}, not text: name another with --column")
    # Half a character (a lone surrogate, from text that was cut) is no text to a tokenizer.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def from_hub(data: str, column: str) -> Documents:
    from datasets import load_dataset

    name, _, configuration = data.partition(":")
    try:
        streamed = load_dataset(name, configuration or None, split="train", streaming=True)
    except Exception as error:  # whatever a missing network, a wrong name or an old script makes it raise
        reason = " ".join(str(error).split())[:300]
        raise GossamerError(f"--data {data}: neither a file nor a data set that the hub gives ({reason})") from error

    def documents(skip: int) -> Iterator[str]:
        for number, row in enumerate(streamed.skip(skip), start=skip):
            if column not in row:
                raise GossamerError(f"{data} has no column {column!r}, but {', '.join(row)}: name one with --column")
            yield check_text(row[column], f"{data}, row {number}", column)

    return Documents(data, f"{data} {column}", documents)
