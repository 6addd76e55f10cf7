"""The tasks: text first, then any model's tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from random import Random

from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.tasks import docstring, greater_than, induction, ioi, jsonl
from gossamer.tasks.pair import EncodedPair, Pair, Prompts, Unfit, choose, encode

__all__ = ["TASKS", "EncodedPair", "Pair", "Prompts", "Task", "prompts"]


@dataclass(frozen=True)
class Task:
    """A source of prompt pairs without end."""

    title: str
    about: str
    metric: str
    candidates: Callable[[Random, Model], Iterator[Pair]]


TASKS = {
    "greater-than": Task(
        "Greater Than",
        "a period that began in 1734 ends after it",
        greater_than.METRIC,
        greater_than.candidates,
    ),
    "ioi": Task("IOI", "the name that was mentioned once receives the gift", ioi.METRIC, ioi.candidates),
    "docstring": Task(
        "Docstring",
        "the next :param documents the next argument",
        docstring.METRIC,
        docstring.candidates,
    ),
    "ioi-long": Task(
        "IOI Long",
        "IOI after distractor sentences of 60 to 120 tokens",
        ioi.METRIC,
        ioi.long_candidates,
    ),
    "induction": Task(
        "Induction",
        "a repeated word is followed by what followed it before",
        induction.METRIC,
        induction.candidates,
    ),
}


def prompts(task: str, model: Model, n: int | None = 100, *, seed: int = 0, same_positions: bool = False) -> Prompts:
    """Prompt pairs of a task in a model's tokens.

    Args:
        task: a name in `TASKS`, or a jsonl file (see `gossamer.tasks.jsonl`).
        n: how many; None means all of a file, and 100 otherwise.
        same_positions: only the commonest template and length, so that a position means the same in every prompt.

    Raises:
        GossamerError: no such task or file, or too few prompts fit the model's tokenizer.
    """
    if task.endswith(".jsonl"):
        if same_positions:
            raise GossamerError(f"{task} is a file: write prompts of one template and length into it instead")
        return jsonl.prompts(task, model, n, seed)
    if task not in TASKS:
        raise GossamerError(f"unknown task {task!r}: choose {', '.join(TASKS)}, or a .jsonl file")
    kind = TASKS[task]

    def stream() -> Iterator[Pair]:
        return kind.candidates(Random(f"{task} {seed}"), model)

    candidates = stream()
    if same_positions:
        candidates = filter(group_filter(task, stream(), model), candidates)
    return choose(candidates, model, 100 if n is None else n, task=task, metric=kind.metric, seed=seed)


def group_filter(task: str, sample: Iterator[Pair], model: Model, size: int = 500) -> Callable[[Pair], bool]:
    """Tells whether a pair is of the commonest template and length among the first `size`.

    Raises:
        GossamerError: that group is less than 1% of them, so that too few would ever be found.
    """

    def group(pair: Pair) -> tuple[str, int]:
        return pair.template, len(model.encode(pair.clean))

    groups: Counter[tuple[str, int]] = Counter()
    for pair in islice(sample, size):
        with suppress(Unfit):
            encode(pair, model)
            groups[group(pair)] += 1
    if not groups:
        return lambda pair: True  # nothing fits: `choose` says why
    commonest, count = groups.most_common(1)[0]
    if count < size / 100:
        raise GossamerError(
            f"prompts of {task} hardly ever share their positions ({count} of {size}): use another task"
        )
    return lambda pair: group(pair) == commonest
