"""The gates of a sparse model: one module inside each attention layer, found there by the attention function.

They are part of the model, so that a sparse model is sparse however it is run; their settings travel in `config.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gossamer.errors import GossamerError

ATTRIBUTE = "gossamer_gate"  # of an attention module
SECTION = "gossamer"  # of a model's config
# Before the model's own type in config.json: transformers alone refuses what it would run dense.
MODEL_TYPE = "gossamer-"


class Gate(nn.Module):
    """The gate of one layer's heads."""

    def __init__(self, bias: Tensor, *, learned: bool, renormalise: bool) -> None:
        super().__init__()
        self.renormalise = renormalise
        self.bias = nn.Parameter(bias, requires_grad=learned)  # (head,)

    def of(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Which edges are open, as (batch, head, query, key) like the scores."""
        return (scores > -self.bias.to(scores)[:, None, None]) & visible  # score + bias > 0, in one pass less

    def apply_to(self, pattern: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
        """A pattern with the shut edges at 0."""
        kept = pattern * self.of(scores.detach(), visible)
        if not self.renormalise:
            return kept
        total = kept.sum(dim=-1, keepdim=True)
        return kept / total.masked_fill(total == 0, 1)


def install(
    modules: Sequence[nn.Module], bias: Tensor, *, learned: bool = False, renormalise: bool = False
) -> list[Gate]:
    """Put a gate into every attention module; `bias` is (layer, head)."""
    gates = []
    for module, row in zip(modules, bias, strict=True):
        gate = Gate(row.detach().clone().to(torch.float32), learned=learned, renormalise=renormalise)
        device = next(module.parameters()).device
        module.add_module(ATTRIBUTE, gate.to(device))
        gates.append(gate)
    return gates


def remove(hf: nn.Module) -> None:
    for module in list(hf.modules()):
        if isinstance(getattr(module, ATTRIBUTE, None), Gate):
            delattr(module, ATTRIBUTE)


def gates(hf: nn.Module) -> list[Gate]:
    """The gates of a model by layer; none if it is dense."""
    return [module for module in hf.modules() if isinstance(module, Gate)]


def biases(hf: nn.Module) -> Tensor:
    """(layer, head)"""
    return torch.stack([gate.bias.detach().float().cpu() for gate in gates(hf)])


def to_config(hf: PreTrainedModel) -> dict[str, Any]:
    """What config.json says of the gates. A float32 survives the way through JSON."""
    found = gates(hf)
    return {"renormalise": found[0].renormalise, "bias": biases(hf).tolist()}


def from_config(section: Any, layers: int, heads: int, name: str) -> tuple[Tensor, bool]:
    """The biases (layer, head) and whether kept edges are renormalised."""
    try:
        bias = torch.tensor(section["gate"]["bias"], dtype=torch.float32)
        renormalise = section["gate"]["renormalise"]
    except (KeyError, TypeError, ValueError) as error:
        raise GossamerError(f"the gate settings in the config of {name!r} can't be read: {error!r}") from error
    if tuple(bias.shape) != (layers, heads) or not torch.isfinite(bias).all() or not isinstance(renormalise, bool):
        raise GossamerError(
            f"the gate settings in the config of {name!r} don't fit: biases {tuple(bias.shape)}, expected finite ones "
            f"of {(layers, heads)}, and renormalise {renormalise!r}"
        )
    return bias, renormalise


@contextmanager
def renormalised(hf: PreTrainedModel) -> Iterator[None]:
    """Inside, the softmax is over the open keys only: what was shut has no say at all."""
    found = gates(hf)
    before = [gate.renormalise for gate in found]
    try:
        for gate in found:
            gate.renormalise = True
        yield
    finally:
        for gate, value in zip(found, before, strict=True):
            gate.renormalise = value
