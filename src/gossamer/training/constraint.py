"""The loss constraint: as few edges as the held-out loss allows.

    minimise p  subject to  loss - base loss <= margin                       p the expected share of open edges

by GECO (Rezende & Viola 2018): minimise p + lambda * (excess - margin), where excess = loss - base loss, and let
lambda grow while the constraint is violated and shrink while it has slack. Four choices make it fast and steady:

- At first a larger excess is allowed, and then ever less, down to the margin. Most edges are of little use, and it is
  quick to shut them; what the rest must learn to do without them takes long, and is learnt best when they are gone.
  Held to the margin from the start, a model sheds edges only as fast as it learns to do without each.
- lambda = mu * p / margin, and mu is the variable that moves. It has no unit, and stays of the order of 1 while p falls
  a thousandfold.
- The excess is measured with decided gates, not drawn ones, on a batch before it is trained on, against the base model
  on the same batch: what is controlled is what is judged, and the noise of the text cancels.
- log mu is mostly in proportion to the violation, plus a slow integral of it, and that only once what is allowed has
  stopped falling. A model learns slowly; an integral goes on rising while the loss is on its way down, and comes back
  long after it is there: edges open meanwhile that nothing asked for (Stooke et al. 2020).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

MOST = 2.0  # of the integral, either way: more would only take long to come back from
GAIN = 2.0  # of log mu, per margin of violation: what acts at once
SMOOTHING = 0.8  # of the measured excess, per measurement
GAP_SMOOTHING = 0.5  # of the gap, per evaluation: both sides of it are noisy
LEAST_MARGIN = 1e-3  # nats: with a margin of 0 the constraint still needs a scale


@dataclass
class Constraint:
    margin: float
    rate: float  # of the integral, per step and margin of violation
    integral: float = 0.0
    excess: float | None = None  # smoothed
    gap: float = 0.0  # held-out excess less that of training batches: overfitting
    slack: float = 1.0  # margins that are allowed now

    @property
    def scale(self) -> float:
        return self.slack * max(self.margin, LEAST_MARGIN)

    @property
    def allowed(self) -> float:
        """The excess that is allowed now."""
        return self.margin + (self.slack - 1) * max(self.margin, LEAST_MARGIN)

    @property
    def violation(self) -> float:
        """In margins: -1 with no excess, 0 at the bound, 1 at twice that or more: one bad batch can't throw mu far."""
        if self.excess is None:
            return 0.0
        return min(max((self.excess + self.gap - self.allowed) / self.scale, -1.0), 1.0)

    def measured(self, excess: float, steps: int) -> None:
        """Take in the excess of a batch, `steps` steps after the last one."""
        self.excess = excess if self.excess is None else SMOOTHING * self.excess + (1 - SMOOTHING) * excess
        if self.slack > 1:  # the loss lags behind what is allowed, which says nothing of the multiplier
            return
        self.integral = min(max(self.integral + self.rate * steps * self.violation, -MOST), MOST)

    def held_out(self, excess: float) -> None:
        """Take in the excess on the held-out text, on which the result will be judged."""
        if self.excess is not None:
            self.gap = GAP_SMOOTHING * self.gap + (1 - GAP_SMOOTHING) * (excess - self.excess)

    @property
    def mu(self) -> float:
        return math.exp(self.integral + GAIN * self.violation)

    def multiplier(self, share: float) -> float:
        """lambda, at an expected share of open edges."""
        return self.mu * share / self.scale

    def weights(self, share: float) -> tuple[float, float]:
        """Of the loss and of the share: the Lagrangian divided by share * (1 + mu), which has a steady size."""
        return self.mu / self.scale / (1 + self.mu), 1 / max(share, 1e-8) / (1 + self.mu)

    def state(self) -> dict[str, float | None]:
        return asdict(self)
