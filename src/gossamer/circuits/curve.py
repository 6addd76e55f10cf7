"""The curve: how much of the effect the k best units explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gossamer.attention.passes import Passes
from gossamer.circuits.activations import Activations
from gossamer.circuits.batch import Batch
from gossamer.circuits.units import Unit

SIZES = ("every", "few", "sketch")
PER_DECADE = {"every": 16, "few": 5, "sketch": 2}  # of edges
STEP = {"few": 4, "sketch": 2}  # of heads: a step is one part of so many of k, and at least 1
EVERY_HEAD = 384  # up to this many heads every k is measured


def sizes(unit: str, total: int, which: str = "every") -> list[int]:
    """The k at which the curve is measured, from 0 to `total`.

    Heads: every k up to 384 heads; in larger models every k up to 128, then even steps, about 350 in all.
    Edges: 16 a decade. "few": heads every k up to 8, then steps of a quarter; 5 a decade of edges. "sketch", for
    controls that only show where a curve runs: heads every k up to 4, then steps of a half; 2 a decade of edges.
    """
    if unit == "heads" and which in STEP:
        chosen = [0]
        while chosen[-1] < total:
            chosen.append(min(total, chosen[-1] + max(1, chosen[-1] // STEP[which])))
        return chosen
    if unit == "heads":
        if total <= EVERY_HEAD:
            return list(range(total + 1))
        step = math.ceil((total - 128) / 224)
        return sorted({*range(129), *range(128, total, step), total})
    decade = PER_DECADE[which]
    steps = math.ceil(decade * math.log10(total)) if total > 1 else 0
    return sorted({0, total, *(min(total, round(10 ** (i / decade))) for i in range(steps + 1))})


def measure(
    passes: Passes,
    batch: Batch,
    unit: Unit,
    ranks: Tensor,
    instead: Activations,
    ks: Sequence[int],
    tick: Callable[[int], None] = lambda passes: None,
) -> Tensor:
    """The metric with the k best units of each prompt kept, (prompt, k): one true forward pass for every k."""
    values = []
    with torch.no_grad():
        for k in ks:
            probe = unit.keep(ranks, k, instead)
            logits = passes(batch.clean, batch.mask, read=batch.read, probe=probe, prefix=batch.prefix)
            values.append(batch.metric.values(logits))
            tick(1)
    return torch.stack(values, dim=1)


def explained_effect(kept: np.ndarray, clean: np.ndarray, none: np.ndarray) -> np.ndarray:
    """(M(kept) - M(none)) / (M(clean) - M(none)), each M a mean over prompts.

    kept (prompt, k), clean and none (prompt,) -> (k,)
    """
    bottom = none.mean()
    effect: np.ndarray = (kept.mean(axis=0) - bottom) / (clean.mean() - bottom)
    return effect


def size_at(ks: Sequence[int], effect: np.ndarray, level: float = 0.9, *, log: bool) -> int | None:
    """The number of units it takes to reach `level` for the first time, or None where no measured size does.

    Interpolated between the two measured sizes around the crossing, along the axis the curve is drawn on (linear for
    heads, logarithmic for edges), and rounded up: units come whole.
    """
    reached = np.flatnonzero(effect >= level)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0:
        return ks[0]
    (k0, k1), (e0, e1) = ks[after - 1 : after + 1], effect[after - 1 : after + 1]
    share = float((level - e0) / (e1 - e0))
    crossing = k0 * (k1 / k0) ** share if log and k0 > 0 else k0 + (k1 - k0) * share
    return math.ceil(crossing - 1e-9)
