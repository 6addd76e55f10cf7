"""k90 of the dense model over k90 of the sparse one, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gossamer.comparison import bootstrap
from gossamer.comparison.bootstrap import Curve
from gossamer.comparison.stored import Stored
from gossamer.errors import GossamerError

# What is compared on every task: units and ranking.
MEASURES = {
    "heads_sentence": ("heads", "sentence"),
    "edges_sentence": ("edges", "sentence"),
    "heads_dataset": ("heads", "dataset"),
}

Interval = tuple[float, float]


@dataclass(frozen=True)
class Multiplier:
    task: str
    measure: str
    dense: int | None  # k90; None if 90% is not reached
    sparse: int | None
    dense_interval: Interval
    sparse_interval: Interval
    interval: Interval
    undefined: int  # resamples in which neither model reaches 90%
    doubts: tuple[str, ...] = ()  # reasons not to believe it: a model that can't do the task, an effect by chance

    @property
    def value(self) -> float | None:
        return None if self.dense is None or self.sparse is None else self.dense / max(self.sparse, 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "measure": self.measure,
            "dense_k90": self.dense,
            "sparse_k90": self.sparse,
            "dense_k90_interval": [finite(end) for end in self.dense_interval],
            "sparse_k90_interval": [finite(end) for end in self.sparse_interval],
            "multiplier": self.value,
            "multiplier_interval": [finite(end) for end in self.interval],
            "interval": f"{bootstrap.LEVEL:.0%}, bootstrap over prompts, paired, {bootstrap.RESAMPLES} resamples; "
            "null is infinite: 90% not reached",
            "resamples_without_either": self.undefined,
            "doubts": list(self.doubts),
        }


def times(value: float) -> str:
    """A multiplier as text: 2.2, but 0.96 and 1.04, which one digit would call 1.0."""
    return f"{value:.1f}" if value == 1 or value >= 1.05 else f"{value:.2f}"


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def multiplier(task: str, measure: str, dense: Curve, sparse: Curve, *, seed: int = 0) -> Multiplier:
    """Of two curves over the same prompts."""
    draws = bootstrap.resample(len(dense.clean), seed=seed)
    sizes = [curve.resampled_sizes(draws) for curve in (dense, sparse)]
    ratios = bootstrap.ratios(*sizes)
    return Multiplier(
        task=task,
        measure=measure,
        dense=dense.k90,
        sparse=sparse.k90,
        dense_interval=bootstrap.interval(sizes[0]),
        sparse_interval=bootstrap.interval(sizes[1]),
        interval=bootstrap.interval(ratios),
        undefined=int((ratios != ratios).sum()),
    )


def check_same_prompts(dense: Stored, sparse: Stored) -> None:
    def asked(circuit: Stored) -> list[tuple[Any, ...]]:
        return [(p["clean"], p["corrupted"], tuple(p["answers"]), tuple(p["wrong"])) for p in circuit.prompts]

    if asked(dense) != asked(sparse):
        raise GossamerError(
            f"{dense.folder} and {sparse.folder} were asked different prompts: their tokenizers differ, so that they "
            "are not a model and its sparse twin"
        )
