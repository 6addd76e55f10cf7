from __future__ import annotations

import random

import numpy as np
import pytest

from gossamer.comparison.scores import chance_jaccard, jaccard, mib_scores, spearman, top_overlap


def test_standard_scores_are_the_benchmarks_sums() -> None:
    """Written out as the benchmark does: trapezoids between its sizes, in shares of all units."""
    shares = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    faithful = [0.0, 0.1, 0.3, 0.2, 0.6, 0.8, 1.2, 1.1, 0.95, 1.0]
    under = from_one = 0.0
    for i in range(len(shares) - 1):
        width = shares[i + 1] - shares[i]
        under += width * (faithful[i] + faithful[i + 1]) / 2
        from_one += width * (abs(1 - faithful[i]) + abs(1 - faithful[i + 1])) / 2
    ks = [0, *(round(share * 10_000) for share in shares)]
    found = mib_scores(ks, np.array([0.0, *faithful]), 10_000)
    assert found == pytest.approx({"cpr": under, "cmd": from_one})


def test_a_perfect_curve_has_perfect_scores() -> None:
    found = mib_scores([0, 1, 100_000], np.array([0.0, 1.0, 1.0]), 100_000)
    assert found["cpr"] == pytest.approx(0.999)
    assert found["cmd"] == pytest.approx(0)


@pytest.mark.parametrize(("first", "second", "total"), [(3, 5, 12), (10, 10, 12), (0, 4, 9), (12, 12, 12)])
def test_overlap_by_chance_is_what_chance_gives(first: int, second: int, total: int) -> None:
    rng = random.Random(0)
    drawn = [jaccard(rng.sample(range(total), first), rng.sample(range(total), second)) for _ in range(4000)]
    assert chance_jaccard(first, second, total) == pytest.approx(np.mean(drawn), abs=0.01)


def test_jaccard() -> None:
    assert jaccard([1, 2, 3], [2, 3, 4]) == 0.5
    assert jaccard([], []) == 1


def test_rank_correlation() -> None:
    scores = np.array([[0.1, 5.0], [2.0, 0.3]])
    assert spearman(scores, scores**3) == pytest.approx(1)
    assert spearman(scores, -scores) == pytest.approx(-1)
    assert np.isnan(spearman(scores, np.zeros((2, 2))))
    # With ties: the correlation of mean ranks 1.5 1.5 3 4 and 1 2 3 4.
    expected = np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1]
    assert spearman(np.array([0, 0, 1, 2]), np.array([1, 2, 3, 4])) == pytest.approx(expected)


def test_top_overlap() -> None:
    assert top_overlap(np.array([3, 2, 1, 0]), np.array([3, 0, 2, 1]), 2) == 0.5
    assert top_overlap(np.array([3, 2]), np.array([3, 2]), 0) == 1
