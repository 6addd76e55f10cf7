"""A learning rate that suits the model, its text and the batch.

Near the base model the gradient is mostly noise, and Adam takes full steps along it: too high a rate spends the margin
on drift before an edge is gone, and the right one differs a hundredfold between models. So it is measured: the highest
rate at which a few steps with no penalty, gates as they start, hardly raise the loss. Hardly, not never: the rate falls
to 0 over the run, and what was noise of the steps goes with it. On stories15M 2e-5 lowers the loss, 5e-5 raises it by
0.07 margins, and 6e-5 had a sixth fewer edges than 2e-5 at the same loss after 150 steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.training.objective import objective, sampling
from gossamer.training.settings import Settings
from gossamer.training.student import Student, make_optimiser

RATES = (1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5, 5e-6, 2e-6, 1e-6)
STEPS = 20
JUDGED = 5  # of these, the last
WARM = 5
RAISED = 0.25  # margins that the loss may rise by


def find_rate(student: Student, text: Tensor, settings: Settings, *, margin: float, part: int) -> float:
    """The rate, from `text` of STEPS * batch blocks, run `part` blocks at a time. The student is left as it was."""
    batches = list(text.to(student.hf.device).split(settings.batch))
    start = {name: weight.detach().clone() for name, weight in student.weights().items()}
    # Batches differ, and each is compared with itself; the last ones decide, some others only end what is hopeless.
    compared = [step for step in range(len(batches)) if step % JUDGED == 0 or step >= len(batches) - JUDGED]
    before = {step: excess_of(student, batches[step], settings, part) for step in compared}
    for rate in RATES:
        optimiser = make_optimiser(student, settings, rate, bias_lr=0.0)
        raised = 0.0
        for step, batch in enumerate(batches):
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * min(1.0, (step + 1) / WARM)
            more = excess_of(student, batch, settings, part, train=True) - before.get(step, 0.0)
            if not math.isfinite(more) or (step in before and more >= 2 * margin):
                raised = float("inf")
                break
            torch.nn.utils.clip_grad_norm_(student.trainable().values(), settings.clip)
            optimiser.step()
            optimiser.zero_grad()
            raised += more / JUDGED if step >= len(batches) - JUDGED else 0.0
        optimiser.zero_grad()
        student.load(start)
        if raised <= RAISED * margin:
            return rate
    return RATES[-1]


def excess_of(student: Student, batch: Tensor, settings: Settings, part: int, *, train: bool = False) -> float:
    """How far a batch is above the base model, gates as in training; the gradient, if wanted, is added up."""
    total = 0.0
    for ids in batch.split(part):
        gates = sampling(settings, settings.seed)
        with torch.set_grad_enabled(train):
            loss, losses, *_ = objective(student, ids, settings, gates, compare=True)
        weight = len(ids) / len(batch)
        if train:
            (loss * weight).backward()
        total += float((losses.kl if settings.distill else losses.ce - losses.base_ce).detach()) * weight
    return total
