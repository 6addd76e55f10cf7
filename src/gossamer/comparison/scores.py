"""Standard scores of a curve, and how alike two rankings or two sets of heads are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

# The sizes at which the Mechanistic Interpretability Benchmark (arXiv 2504.13151) measures faithfulness.
MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def mib_scores(ks: Sequence[int], effect: np.ndarray, total: int) -> dict[str, float]:
    """CPR, the area under the faithfulness curve, and CMD, that between it and 1, by the trapezoidal rule over the
    benchmark's sizes as shares of all units.

    Faithfulness is the explained effect. Between measured sizes it is read off the straight line; the benchmark's own
    units are edges between components, here they are heads or attention edges: compare like with like.
    """
    shares = np.array(MIB_SHARES)
    faithfulness = np.interp(shares * total, ks, effect)
    return {
        "cpr": float(np.trapezoid(faithfulness, shares)),
        "cmd": float(np.trapezoid(np.abs(1 - faithfulness), shares)),
    }


def jaccard(first: Collection[Any], second: Collection[Any]) -> float:
    """|A and B| / |A or B|; of two empty sets 1."""
    a, b = set(first), set(second)
    return len(a & b) / len(a | b) if a | b else 1.0


def chance_jaccard(first: int, second: int, total: int) -> float:
    """What two sets of these sizes, drawn from `total` by chance, share on average."""
    ways = math.comb(total, second)
    return sum(
        math.comb(first, both) * math.comb(total - first, second - both) / ways * jaccard_of_sizes(first, second, both)
        for both in range(max(0, first + second - total), min(first, second) + 1)
    )


def jaccard_of_sizes(first: int, second: int, both: int) -> float:
    either = first + second - both
    return both / either if either else 1.0


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation of two sets of scores; equal scores share their rank."""
    a, b = (pd.Series(values.ravel()).rank().to_numpy() for values in (first, second))
    if a.std() == 0 or b.std() == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def top_overlap(first: np.ndarray, second: np.ndarray, k: int) -> float:
    """The share of the k highest of one that are among the k highest of the other."""
    if k == 0:
        return 1.0
    tops = [set(np.argsort(-values.ravel(), kind="stable")[:k].tolist()) for values in (first, second)]
    return len(tops[0] & tops[1]) / k
