"""What a step is trained on: the text, or what the base model makes of it.

With distillation that is the KL to the base model's predictions, and how far the student's states are from the base
model's after every layer. A gradient that has come down through all layers says little of what one head has lost by
its shut edges; the states say it at once, for every token. On stories15M, 200 steps of a run of
300: 8.8% of edges at +0.036 nats by the KL alone, 9.5% at +0.020 by the KL and ten times the distance of the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.attention.function import Sampling, probing
from gossamer.training.losses import ALL, Losses, token_losses
from gossamer.training.settings import TEMPERATURE, Settings
from gossamer.training.student import Student


class Outcome(NamedTuple):
    loss: Tensor  # what is trained on
    losses: Losses
    base_hidden: Tensor | None  # what the base model's unembedding reads
    distance: Tensor  # of the states, 0 where they are not matched


def objective(
    student: Student,
    ids: Tensor,
    settings: Settings,
    gates: Sampling | None,
    *,
    compare: bool = False,
    tokens: slice = ALL,
    run: Callable[..., Any] | None = None,
) -> Outcome:
    """One pass over `ids` (batch, position), and one of the base model if it is trained on or to `compare` with, in the
    precision of training.

    gates: how they are drawn; None opens them. tokens: whose predictions are looked at, in each block.
    run: the model as accelerate wrapped it.
    """
    assert settings.match is not None
    states: list[Tensor] | None = [] if settings.match else None
    base_states: list[Tensor] | None = [] if settings.match else None
    base_hidden = None
    with computing(settings, ids.device):
        if settings.distill or settings.match or compare:
            with student.base() as base:
                base_hidden = base(ids, states=base_states)
        with probing(gates, open=gates is None):
            hidden = student.read(ids, run, states=states)
        losses = compared(student, ids, hidden, settings, base_hidden, tokens)
        loss = losses.kl if settings.distill else losses.ce
        apart = loss.new_zeros(())
        if states and base_states:
            apart = distance(states, base_states).to(loss)
            loss = torch.lerp(loss, apart, settings.match)
    return Outcome(loss, losses, base_hidden, apart)


def sampling(settings: Settings, seed: int, first: int = 0) -> Sampling | None:
    """The gates of a step for blocks from the `first` of the batch on; None without a penalty: all open."""
    if not settings.penalty:
        return None
    drawn = settings.noise > 0
    temperature = settings.temperature
    if temperature is None:
        temperature = 1.0 if drawn else TEMPERATURE
    return Sampling(seed if drawn else None, first, settings.noise, temperature)


def computing(settings: Settings, device: torch.device) -> AbstractContextManager[Any]:
    """The precision of training. What is judged, held-out text and the base model's loss on it, is in full."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.precision == "bf16")


def compared(
    student: Student, ids: Tensor, hidden: Tensor, settings: Settings, base_hidden: Tensor | None, tokens: slice = ALL
) -> Losses:
    train_on_kl, read, read_base = bool(settings.distill), student.read, student.read_base
    return token_losses(
        ids, hidden, read, base_hidden, read_base, train_on_kl=train_on_kl, agreement=False, tokens=tokens
    )


def distance(states: Sequence[Tensor], base_states: Sequence[Tensor]) -> Tensor:
    """Squared distance of the states (batch, position, d_model), relative to each one's own size, which can differ a
    hundredfold between the first token and others: the mean over tokens and layers."""
    of_layers = []
    for mine, its in zip(states, base_states, strict=True):
        size = its.float().square().sum(dim=-1)
        size = size.masked_fill(size == 0, 1)  # a state of zeros has none
        of_layers.append(((mine.float() - its.float()).square().sum(dim=-1) / size).mean())
    return torch.stack(of_layers).mean()
