"""How far a number of units would move with other prompts: a bootstrap over prompts, all resamples at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.circuits.curve import explained_effect, size_at

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Curve:
    """What a curve is made of, prompt by prompt."""

    ks: list[int]
    kept: np.ndarray  # (prompt, k), the metric with the k best units kept; none first
    clean: np.ndarray  # (prompt,)
    log: bool  # whether sizes are read off a logarithmic axis

    @property
    def k90(self) -> int | None:
        return size_at(self.ks, explained_effect(self.kept, self.clean, self.kept[:, 0]), log=self.log)

    def resampled(self, draws: np.ndarray) -> np.ndarray:
        return curves(draws, self.kept, self.clean)

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle of the resampled curves, from (k,) to (k,): `LEVEL` of them."""
        effects = self.resampled(resample(len(self.clean)))
        low, high = np.nanquantile(effects, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    def resampled_sizes(self, draws: np.ndarray) -> np.ndarray:
        return sizes_at(self.ks, self.resampled(draws), log=self.log)


def resample(prompts: int, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """How often each prompt is drawn, (resample, prompt): the same draws serve both models, prompt by prompt."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)


def curves(draws: np.ndarray, kept: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """The explained effect of every resample, (resample, k), from the metric `kept` (prompt, k), none kept first, and
    `clean` (prompt,)."""
    means = draws @ kept / draws.sum(axis=1, keepdims=True)
    bottom = means[:, :1]
    top = (draws @ clean / draws.sum(axis=1))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        effect: np.ndarray = (means - bottom) / (top - bottom)
    return effect


def sizes_at(ks: Sequence[int], effects: np.ndarray, level: float = 0.9, *, log: bool) -> np.ndarray:
    """`curve.size_at` of many curves (resample, k): infinite where the level is not reached."""
    sizes = np.asarray(ks, dtype=float)
    reached = effects >= level
    rows = np.arange(len(effects))
    after = reached.argmax(axis=1)
    before = np.maximum(after - 1, 0)
    k0, k1, e0, e1 = sizes[before], sizes[after], effects[rows, before], effects[rows, after]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(after > 0, (level - e0) / (e1 - e0), 1.0)
        by_ratio = k0 * (k1 / k0) ** share
    crossing = np.where((k0 > 0) & log & (after > 0), by_ratio, k0 + (k1 - k0) * share)
    found: np.ndarray = np.where(reached.any(axis=1), np.ceil(crossing - 1e-9), np.inf)
    return found


def interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of the values, infinite ones included; NaN if there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = np.quantile(known, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def ratios(dense: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    """dense / sparse of every resample: infinite where only the dense curve falls short, NaN where both do."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: np.ndarray = dense / sparse
    return quotient
