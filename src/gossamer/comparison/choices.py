"""The multiplier under every choice that circuits are found by: importance, ranking, sign, replacement.

RUN/panels/TASK/choices/SIDE/UNITS-RANKING-IMPORTANCE-SIGN-REPLACE.safetensors holds a curve each, so that an
interrupted run goes on; RUN/choices.csv the multipliers, RUN/agreement.csv how far estimates rank from exact patching.
Curves are measured at few sizes: there are 48 of them for each model and task.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from gossamer.circuits.activations import REPLACEMENTS
from gossamer.circuits.discover import circuit
from gossamer.circuits.parts import Parts
from gossamer.circuits.ranking import SIGNS
from gossamer.comparison.bootstrap import Curve
from gossamer.comparison.jobs import Bar, Shared
from gossamer.comparison.multiplier import finite, multiplier
from gossamer.comparison.scores import spearman, top_overlap
from gossamer.files import write_text, write_whole
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

if TYPE_CHECKING:
    from gossamer.comparison.run import Result

FOLDER = "choices"
KEYS = ("units", "ranking", "importance", "sign", "replace")


def combinations() -> Iterator[dict[str, Any]]:
    """Every choice for heads; for edges those that don't take a pass for each edge."""
    heads = itertools.product(["heads"], ["sentence", "dataset"], ["gradient", "ig", "exact"], SIGNS, REPLACEMENTS)
    edges = itertools.product(["edges"], ["sentence"], ["gradient", "ig"], SIGNS, REPLACEMENTS)
    for values in (*heads, *edges):
        yield dict(zip(KEYS, values, strict=True))


def file_of(folder: Path, side: str, choice: dict[str, Any]) -> Path:
    return folder / FOLDER / side / ("-".join(choice.values()) + ".safetensors")


def measure_choices(model: Model, side: str, prompts: Prompts, folder: Path, seed: int, bar: Bar) -> None:
    """The curve of one model on one task under every choice."""
    todo = [choice for choice in combinations() if not file_of(folder, side, choice).exists()]
    todo.sort(key=lambda choice: choice["units"])  # edges first: see Shared
    if not todo:
        return
    (folder / FOLDER / side).mkdir(parents=True, exist_ok=True)
    shared: dict[tuple[str, str], Shared] = defaultdict(Shared)  # by importance and replacement
    with bar(f"{prompts.task}, {model.name}: every choice") as progress:
        for number, choice in enumerate(todo):
            progress(", ".join(choice.values()), number, len(todo))
            parts, known = Parts(), shared[choice["importance"], choice["replace"]]
            known.give(parts, choice)
            found = circuit(model, prompts, seed=seed, sizes="few", parts=parts, **choice)
            known.take(parts, choice)
            tensors = {
                "ks": torch.tensor(found.ks),
                "kept": torch.from_numpy(found.metric),
                "clean": torch.from_numpy(found.clean),
            }
            if choice["units"] == "heads":
                tensors["scores"] = found.rankings["scores"].double().mean(dim=0)
            write_whole(file_of(folder, side, choice), partial(save_file, tensors))


def read_curve(path: Path, units: str) -> tuple[Curve, np.ndarray | None]:
    """A curve, and heads' mean scores (layer, head)."""
    tensors = load_file(path)
    curve = Curve(tensors["ks"].tolist(), tensors["kept"].numpy(), tensors["clean"].numpy(), log=units == "edges")
    return curve, tensors["scores"].numpy() if "scores" in tensors else None


def multipliers(result: Result) -> list[dict[str, Any]]:
    """A row for each choice."""
    rows = []
    for choice in combinations():
        files = [file_of(result.folder, side, choice) for side in ("dense", "sparse")]
        dense, sparse = (read_curve(file, choice["units"])[0] for file in files)
        found = multiplier(result.panel.task, "", dense, sparse)
        rows.append(
            {
                "task": result.panel.task,
                **choice,
                "dense_k90": found.dense,
                "sparse_k90": found.sparse,
                "multiplier": found.value,
                "low": finite(found.interval[0]),
                "high": finite(found.interval[1]),
            }
        )
    return rows


def agreement(result: Result) -> list[dict[str, Any]]:
    """How far gradient and IG rank heads from exact patching: Spearman's correlation of |score|, and the share of the
    heads that exact patching needs for 90% among as many of theirs."""
    rows = []
    for side, replace in itertools.product(("dense", "sparse"), REPLACEMENTS):
        scores = {}
        k = 0
        for importance in ("gradient", "ig", "exact"):
            choice = dict(zip(KEYS, ("heads", "dataset", importance, "absolute", replace), strict=True))
            curve, found = read_curve(file_of(result.folder, side, choice), "heads")
            assert found is not None
            scores[importance] = np.abs(found)
            k = curve.k90 or found.size
        for importance in ("gradient", "ig"):
            rows.append(
                {
                    "task": result.panel.task,
                    "model": side,
                    "replace": replace,
                    "importance": importance,
                    "spearman": spearman(scores[importance], scores["exact"]),
                    "k": k,
                    "overlap_of_top_k": top_overlap(scores[importance], scores["exact"], k),
                }
            )
    return rows


def write_choices(folder: Path, results: Sequence[Result]) -> pd.DataFrame | None:
    """RUN/choices.csv and RUN/agreement.csv, where every choice was measured."""
    measured = [result for result in results if (result.folder / FOLDER).exists()]
    if not measured:
        return None
    frame = pd.DataFrame([row for result in measured for row in multipliers(result)])
    write_text(folder / "choices.csv", frame.to_csv(index=False))
    agreed = pd.DataFrame([row for result in measured for row in agreement(result)])
    write_text(folder / "agreement.csv", agreed.to_csv(index=False))
    return frame
