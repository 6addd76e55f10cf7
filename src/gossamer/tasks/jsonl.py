"""A task from a file: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.tasks.metric import DEFINITIONS, LOGIT
from gossamer.tasks.pair import Pair, Prompts, Unfit, encode

FIELDS = "clean, corrupted, answers, wrong"


def read(path: str | Path) -> list[tuple[int, Pair, str]]:
    """The line number, pair and metric of every line of a jsonl file; empty lines are skipped.

    Each line: {"clean": "...", "corrupted": "...", "answers": [" Mary"], "wrong": [" John"]}, and, if positions mean
    the same in some of them, a "template" that says which belong together. "metric" may be "logit difference", the
    default, or "probability difference", the same in all lines. Other fields are ignored.

    Raises:
        GossamerError: the file can't be read, is empty, or a line is not such an object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise GossamerError(f"could not read {path}: {error}") from error
    pairs = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            pairs.append((number, *parse(json.loads(line))))
        except (ValueError, RecursionError) as error:
            raise GossamerError(f"{path}, line {number}: {error}") from error
    if not pairs:
        raise GossamerError(f"{path} is empty: write one JSON object a line with {FIELDS}")
    return pairs


def parse(record: Any) -> tuple[Pair, str]:
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with {FIELDS}, got {type(record).__name__}")
    for name in ("clean", "corrupted"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise ValueError(f"{name!r} must be a text, got {record.get(name)!r}")
    for name in ("answers", "wrong"):
        value = record.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
            raise ValueError(f"{name!r} must be a list of one or more texts, got {value!r}")
        if len(set(value)) < len(value):
            raise ValueError(f"{name!r} names an answer twice")
    template, metric = record.get("template", ""), record.get("metric", LOGIT)
    if not isinstance(template, str):
        raise ValueError(f"'template' must be a text, got {template!r}")
    if metric not in DEFINITIONS:
        raise ValueError(f"'metric' must be one of {', '.join(DEFINITIONS)}, got {metric!r}")
    for text in (record["clean"], record["corrupted"], *record["answers"], *record["wrong"]):
        text.encode()  # a lone surrogate is no text; UnicodeEncodeError is a ValueError
    pair = Pair(
        clean=record["clean"],
        corrupted=record["corrupted"],
        answers=tuple(record["answers"]),
        wrong=tuple(record["wrong"]),
        template=template,
    )
    return pair, metric


def prompts(path: str | Path, model: Model, n: int | None, seed: int) -> Prompts:
    """The file's pairs in this model's tokens: all of them, or `n` drawn by the seed.

    Raises:
        GossamerError: a line does not fit the tokenizer (nothing in a user's own file is dropped without a word), or
            there are fewer than `n`.
    """
    encoded = []
    lines = read(path)
    if len(metrics := {metric for _, _, metric in lines}) > 1:
        raise GossamerError(f"{path} asks for several metrics ({', '.join(sorted(metrics))}): write one file for each")
    for number, pair, _ in lines:
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
    return Prompts(task=Path(path).name, metric=metrics.pop(), pairs=tuple(encoded), seed=seed)
