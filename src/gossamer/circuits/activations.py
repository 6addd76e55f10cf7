"""What a pass computed inside attention, and what stands in for it where a unit is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.attention.function import AttentionCall

REPLACEMENTS = ("corrupted", "mean", "zero")


@dataclass(eq=False)
class Activations:
    """Per layer: the heads' outputs, and if asked for the patterns and values they are made of."""

    z: list[Tensor] = field(default_factory=list)  # (prompt, head, query, d_head)
    pattern: list[Tensor] = field(default_factory=list)  # (prompt, head, query, key)
    value: list[Tensor] = field(default_factory=list)  # (prompt, kv head, key, d_head)
    visible: list[Tensor] = field(default_factory=list)  # (prompt or 1, 1, query, key)


class Record:
    """A probe that remembers what it sees; with `gradient`, in a way that can be differentiated."""

    def __init__(self, *, patterns: bool, gradient: bool = False) -> None:
        self.seen = Activations()
        self.patterns = patterns
        self.gradient = gradient

    def __call__(self, call: AttentionCall) -> Tensor:
        if self.patterns:
            self.seen.pattern.append(call.pattern.detach())
            self.seen.value.append(call.value.detach())
            self.seen.visible.append(call.visible)
        z = call.output
        if self.gradient and not z.requires_grad:
            z.requires_grad_()  # the first layer: with frozen weights nothing before it has a gradient
        self.seen.z.append(z)
        return z


def summed(seen: Activations, lengths: Tensor) -> Tensor:
    """The heads' outputs summed over all positions of all prompts but for padding, (layer, head, d_head)."""
    real = (torch.arange(seen.z[0].shape[2]).to(lengths) < lengths[:, None])[:, None, :, None]
    return torch.stack([(z * real.to(z.device)).sum(dim=(0, 2)).cpu().double() for z in seen.z])


def replacement(kind: str, corrupted: Activations, means: Sequence[Tensor] | None) -> Activations:
    """What the removed units of a batch contribute instead.

    corrupted: their values in the corrupted run.
    zero: nothing.
    mean: the head's mean output over all positions of all corrupted prompts (`means`, per layer (head, d_head)); an
        edge contributes its row's equal share of it. Removing every edge is then the same as removing every head.
    """
    if kind == "corrupted":
        return corrupted
    if kind == "zero":
        return Activations(
            z=[zeros_like(z) for z in corrupted.z],
            pattern=[zeros_like(pattern) for pattern in corrupted.pattern],
            value=[zeros_like(value) for value in corrupted.value],
            visible=corrupted.visible,
        )
    assert means is not None
    shaped = [mean.to(z)[None, :, None, :].expand_as(z) for mean, z in zip(means, corrupted.z, strict=True)]
    return Activations(
        z=shaped,
        pattern=[
            (visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)).to(pattern.dtype).expand_as(pattern)
            for visible, pattern in zip(corrupted.visible, corrupted.pattern, strict=True)
        ],
        value=shaped if corrupted.value else [],
        visible=corrupted.visible,
    )


def zeros_like(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand_as(tensor)
