from __future__ import annotations

import math

import pytest

from gossamer.training.constraint import Constraint
from gossamer.training.settings import Settings


def test_slack_allows_more_excess_and_weighs_the_loss_less() -> None:
    tight, loose = Constraint(margin=0.01, rate=0.01), Constraint(margin=0.01, rate=0.01, slack=8.0)
    assert (tight.allowed, loose.allowed) == pytest.approx((0.01, 0.08))
    for constraint in (tight, loose):
        constraint.measured(0.04, 5)
    assert tight.violation > 0 > loose.violation
    assert tight.weights(0.1)[0] > loose.weights(0.1)[0]


def test_slack_ends_before_the_run_does() -> None:
    settings = Settings(slack=8.0, steps=100)
    assert [settings.slack_factor(step) for step in (0, 25, 50, 99)] == pytest.approx([8.0, 4.4, 0.8, 0.8])
    longer = Settings(slack=8.0, slack_ends=0.9, aim=1.0, steps=100)
    assert [longer.slack_factor(step) for step in (0, 45, 90)] == pytest.approx([8.0, 4.5, 1.0])
    assert Settings(slack=8.0, penalty=False).slack_factor(0) == 1.0


def test_slack_never_tightens_a_bound_at_or_below_the_base_loss() -> None:
    assert Constraint(margin=0.0, rate=0.01, slack=8.0).allowed > 0
    assert Constraint(margin=-0.1, rate=0.01, slack=8.0).allowed > -0.1


def test_the_multiplier_follows_the_violation() -> None:
    constraint = Constraint(margin=0.01, rate=0.01)
    before = constraint.mu
    constraint.measured(0.0, 5)  # no excess: slack
    assert constraint.mu < before
    slack = Constraint(margin=0.01, rate=0.01)
    slack.measured(0.05, 5)
    assert slack.mu > before


def test_one_wild_batch_does_not_throw_it() -> None:
    constraint = Constraint(margin=0.01, rate=0.01)
    constraint.measured(1e9, 5)
    assert constraint.mu < 10


def test_what_counts_is_held_out_text() -> None:
    constraint = Constraint(margin=0.01, rate=0.01)
    constraint.measured(0.005, 5)
    assert constraint.violation < 0
    for _ in range(20):
        constraint.held_out(0.02)  # the training text makes it look better than it is
    assert constraint.violation == pytest.approx(1.0, abs=1e-3)


def test_one_evaluation_does_not_throw_the_gap() -> None:
    constraint = Constraint(margin=0.01, rate=0.01)
    constraint.measured(0.005, 5)
    constraint.held_out(0.025)
    assert 0.005 < constraint.gap < 0.02


def test_a_margin_of_nothing_still_has_a_scale() -> None:
    constraint = Constraint(margin=0.0, rate=0.01)
    constraint.measured(0.0005, 5)
    assert math.isfinite(constraint.mu)
    assert all(math.isfinite(weight) for weight in constraint.weights(0.1))


def test_its_state_survives() -> None:
    constraint = Constraint(margin=0.01, rate=0.01)
    constraint.measured(0.02, 5)
    constraint.held_out(0.03)
    assert Constraint(**constraint.state()) == constraint  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [20, 100])
@pytest.mark.parametrize("ease", [0.3, 3.0])
def test_a_slow_model_is_brought_to_the_bound(lag: float, ease: float) -> None:
    """A model whose excess follows the multiplier with a lag, `ease` telling how dear edges are: it settles at the
    bound, and does not swing far beyond it, without anything tuned."""
    constraint = Constraint(margin=0.01, rate=0.01)
    excess, highest = 0.0, 0.0
    for step in range(3000):
        excess += (ease * 0.01 / constraint.mu - excess) / lag
        if step % 5 == 0:
            constraint.measured(excess, 5)
        if step > 500:
            highest = max(highest, excess)
    assert excess == pytest.approx(0.01, rel=0.05)
    assert highest < 0.015


def test_the_multiplier_comes_down_with_the_violation() -> None:
    """Edges must not go on opening once the loss is where it should be, however long that took."""
    constraint = Constraint(margin=0.01, rate=Settings().dual_rate)
    for _ in range(60):
        constraint.measured(0.015, 5)
    highest = constraint.mu
    for _ in range(10):  # the measurements are smoothed
        constraint.measured(0.01, 5)
    assert constraint.mu < highest / 2


def test_a_long_violation_is_soon_forgotten() -> None:
    constraint = Constraint(margin=0.01, rate=0.02)
    for _ in range(1000):
        constraint.measured(0.05, 5)
    assert 20 < constraint.mu < 1000  # edges hardly count
    for _ in range(60):
        constraint.measured(0.0, 5)
    assert constraint.mu < 1
