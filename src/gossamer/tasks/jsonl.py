"""A task from a file: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.tasks.pair import Pair, Prompts, Unfit, encode

FIELDS = "clean, corrupted, answers, wrong"
METRIC = "logit difference"


def read(path: str | Path) -> list[tuple[int, Pair]]:
    """The pairs of a jsonl file with their line numbers; empty lines are skipped.

    Each line: {"clean": "...", "corrupted": "...", "answers": [" Mary"], "wrong": [" John"]}, and, if positions mean
    the same in some of them, a "template" that says which belong together.

    Raises:
        GossamerError: the file can't be read, is empty, or a line is not such an object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GossamerError(f"could not read {path}: {error}") from error
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            pairs.append((number, parse(json.loads(line))))
        except ValueError as error:
            raise GossamerError(f"{path}, line {number}: {error}") from error
    if not pairs:
        raise GossamerError(f"{path} is empty: write one JSON object a line with {FIELDS}")
    return pairs


def parse(record: Any) -> Pair:
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with {FIELDS}, got {type(record).__name__}")
    for name in ("clean", "corrupted"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise ValueError(f"{name!r} must be a text, got {record.get(name)!r}")
    for name in ("answers", "wrong"):
        value = record.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
            raise ValueError(f"{name!r} must be a list of one or more texts, got {value!r}")
    template = record.get("template", "")
    if not isinstance(template, str):
        raise ValueError(f"'template' must be a text, got {template!r}")
    return Pair(
        clean=record["clean"],
        corrupted=record["corrupted"],
        answers=tuple(record["answers"]),
        wrong=tuple(record["wrong"]),
        template=template,
    )


def prompts(path: str | Path, model: Model, n: int | None, seed: int) -> Prompts:
    """The file's pairs in this model's tokens: all of them, or `n` drawn by the seed.

    Raises:
        GossamerError: a line does not fit the tokenizer (nothing in a user's own file is dropped without a word), or
            there are fewer than `n`.
    """
    encoded = []
    for number, pair in read(path):
        try:
            encoded.append(encode(pair, model))
        except Unfit as unfit:
            raise GossamerError(f"{path}, line {number}: {unfit}") from unfit
    if n is not None:
        if n < 1:
            raise GossamerError(f"{n} prompts asked for: ask for at least 1")
        if n > len(encoded):
            raise GossamerError(f"{n} prompts asked for, {path} holds {len(encoded)}: ask for fewer")
        encoded = Random(seed).sample(encoded, n)
    return Prompts(task=Path(path).stem, metric=METRIC, pairs=tuple(encoded), seed=seed)
