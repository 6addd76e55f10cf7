"""The whole method on the bundled models, or on any others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gossamer.bundled import shipped
from gossamer.comparison.jobs import Bar, silent
from gossamer.comparison.multiplier import Multiplier
from gossamer.comparison.run import Panel, compare
from gossamer.errors import GossamerError
from gossamer.models import load
from gossamer.training.folder import RESULT
from gossamer.training.run import sparsify

TASKS = {"greater-than": "gpt2", "ioi": "gpt2", "docstring": "olmo", "ioi-long": "olmo"}

# How the bundled models are post-trained; all else is the default.
SPARSIFY: dict[str, dict[str, Any]] = {
    "gpt2": {"steps": 900, "every": 100},
    "olmo": {"steps": 500, "every": 100},
}

# What the bundled models take in place of 100 prompts and every size, with twins that are made first and with those
# that come with the package: 20 minutes and 2 on two CPU cores.
FULL: dict[str, Any] = {"prompts": 30, "sizes": "few"}
QUICK: dict[str, Any] = {"prompts": 12, "sizes": "few"}

# For so many steps, with gates or without.
TrainingBar = Callable[[int, bool], AbstractContextManager[tuple[Any, Any]]]


def quiet(_steps: int, _gates: bool) -> AbstractContextManager[tuple[Any, Any]]:
    return nullcontext((lambda _stage, _done, _total: None, lambda _tau, _base: lambda _step, _values: None))


def reproduce(
    out: str | Path,
    panels: Sequence[Panel] | None = None,
    *,
    quick: bool = False,
    bar: Bar = silent,
    training_bar: TrainingBar = quiet,
    loading: dict[str, Any] | None = None,
    sparsify_settings: dict[str, Any] | None = None,
    **options: Any,
) -> list[Multiplier]:
    """Compare dense and sparse models, and write circuits, multipliers and figures to the folder `out`.

    Args:
        out: the folder; an interrupted run of the same request goes on.
        panels: tasks and models. None takes the bundled models on their four tasks.
        quick: with the bundled models, take the sparse twins that come with the package (else they are trained), and
            unless others are asked for, few prompts.
        sparsify_settings: changes to how the twins are trained.
        options: of `gossamer.compare`.
    """
    out = Path(out)
    tasks = {task: name for task, name in TASKS.items() if name in shipped()}
    if panels is None and not tasks:
        raise GossamerError(
            "the trained bundled models are not in this installation: give --panel TASK=DENSE,SPARSE with others"
        )
    if quick or panels is None:
        given = {name: value for name, value in options.items() if value is not None}
        options = {**(QUICK if quick else FULL), **given}
    if panels is not None or quick:
        chosen = panels or [Panel(task, f"bundled:{name}", f"bundled:{name}-sparse") for task, name in tasks.items()]
        return compare(chosen, out, bar=bar, loading=loading, **options)

    kinds = ["sparse", "tuned"] if options.get("controls", True) else ["sparse"]

    def twin(name: str, kind: str) -> Path:
        return out / "models" / f"{name}-{kind}"

    def train() -> None:
        for name, kind in itertools.product(dict.fromkeys(tasks.values()), kinds):
            if (twin(name, kind) / RESULT).exists():
                continue
            settings = {**SPARSIFY[name], **(sparsify_settings or {}), "penalty": kind == "sparse"}
            model = load(f"bundled:{name}", **{**(loading or {}), "dtype": "float32"})
            with training_bar(settings["steps"], settings["penalty"]) as (progress, report):
                sparsify(model, "bundled", twin(name, kind), resume=True, progress=progress, report=report, **settings)

    chosen = [
        Panel(task, f"bundled:{name}", *(str(twin(name, kind)) for kind in kinds)) for task, name in tasks.items()
    ]
    return compare(chosen, out, bar=bar, loading=loading, prepare=train, **options)
