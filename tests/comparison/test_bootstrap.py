from __future__ import annotations

import math

import numpy as np
import pytest

from gossamer.circuits.curve import explained_effect, size_at
from gossamer.comparison import bootstrap


def noisy(prompts: int, ks: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Metrics that rise with k, with noise of each prompt; not every resample reaches 90%."""
    rng = np.random.default_rng(seed)
    rise = np.linspace(0, 0.8, len(ks))
    kept = rise + 0.3 * rng.standard_normal((prompts, len(ks)))
    return kept, 1 + 0.1 * rng.standard_normal(prompts)


@pytest.mark.parametrize("log", [False, True])
def test_all_resamples_at_once_are_those_one_by_one(log: bool) -> None:
    ks = [0, 1, 2, 3, 5, 8, 13, 21]
    kept, clean = noisy(12, ks)
    draws = bootstrap.resample(12, resamples=200)
    effects = bootstrap.curves(draws, kept, clean)
    sizes = bootstrap.sizes_at(ks, effects, log=log)
    missed = 0
    for draw, effect, size in zip(draws, effects, sizes, strict=True):
        rows = np.repeat(np.arange(12), draw)
        literal = explained_effect(kept[rows], clean[rows], kept[rows, 0])
        assert effect == pytest.approx(literal, abs=1e-9)
        expected = size_at(ks, literal, log=log)
        missed += expected is None
        assert size == (math.inf if expected is None else expected)
    assert 0 < missed < 200


def test_a_curve_that_starts_at_the_level_needs_nothing() -> None:
    assert bootstrap.sizes_at([0, 1], np.array([[0.95, 1.0]]), log=True).tolist() == [0]


def test_an_interval_counts_what_is_not_reached() -> None:
    values = np.array([1.0] * 50 + [np.inf] * 50)
    assert bootstrap.interval(values) == (1.0, math.inf)
    assert all(math.isnan(end) for end in bootstrap.interval(np.array([np.nan, np.nan])))


def test_ratios_of_what_is_not_reached() -> None:
    dense, sparse = np.array([4, np.inf, 4, np.inf]), np.array([2, 2, np.inf, np.inf])
    found = bootstrap.ratios(dense, sparse)
    assert found[:3].tolist() == [2, math.inf, 0]
    assert math.isnan(found[3])


def test_the_interval_covers_the_truth_at_about_its_nominal_rate() -> None:
    """Prompts drawn from a law whose k90 is known: 95% intervals hold it in about 95% of the experiments."""
    ks = list(range(21))
    truth = 11.25  # where the mean curve 0.08 k crosses 0.9
    hits = 0
    experiments = 200
    for seed in range(experiments):
        rng = np.random.default_rng(seed)
        slopes = 0.08 + 0.02 * rng.standard_normal(60)
        kept = slopes[:, None] * np.array(ks)
        effects = bootstrap.curves(bootstrap.resample(60, resamples=400, seed=seed), kept, np.ones(60))
        low, high = bootstrap.interval(bootstrap.sizes_at(ks, effects, log=False))
        hits += low <= math.ceil(truth) and high >= math.floor(truth)
    assert hits / experiments > 0.9
