"""The one attention function, for every model.

transformers asks for an attention function by name. Ours computes ordinary attention; a *probe* handed in for
one forward pass sees each layer's call and decides what leaves it: that is all there is to recording and patching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from gossamer.errors import GossamerError

NAME = "gossamer"

# Arguments that change what attention computes and that this function does not know. Ignoring one would give
# wrong numbers without a word, so a model that passes one is refused.
UNSUPPORTED = {
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a position bias (ALiBi, T5)",
    "alibi": "ALiBi",
    "head_mask": "a head mask",
}


@dataclass(eq=False)
class AttentionCall:
    """One layer's attention in one forward pass: its inputs, and what follows from them."""

    module: nn.Module
    query: Tensor  # (batch, head, query, d_head)
    key: Tensor  # (batch, kv head, key, d_head)
    value: Tensor  # (batch, kv head, key, d_head)
    visible: Tensor  # (batch or 1, 1, query, key), True where the query may look
    scaling: float
    softcap: float | None = None
    dropout: float = 0.0

    @property
    def layer(self) -> int:
        layer = self.module.layer_idx
        assert isinstance(layer, int)
        return layer

    @cached_property
    def pattern(self) -> Tensor:
        """The attention weights, (batch, head, query, key)."""
        batch, heads, queries, width = self.query.shape
        groups = heads // self.key.shape[1]  # query heads that share one key head
        query = self.query.reshape(batch, self.key.shape[1], groups * queries, width)
        scores = (query @ self.key.transpose(-1, -2)).view(batch, heads, queries, -1) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = scores.masked_fill(~self.visible, torch.finfo(scores.dtype).min)
        return upcast(scores).softmax(dim=-1).to(self.value.dtype)

    @cached_property
    def output(self) -> Tensor:
        """Each head's output z, (batch, head, query, d_head)."""
        if self.softcap is not None or "pattern" in self.__dict__:
            return mix(F.dropout(self.pattern, self.dropout), self.value)
        return F.scaled_dot_product_attention(
            self.query,
            self.key,
            self.value,
            attn_mask=self.visible,
            dropout_p=self.dropout,
            scale=self.scaling,
            enable_gqa=self.query.shape[1] != self.key.shape[1],
        )


# What one forward pass does inside attention: from a call to the z that leaves it, (batch, head, query, d_head).
Probe = Callable[[AttentionCall], Tensor]


@dataclass(frozen=True, eq=False)
class Prefix:
    """The first positions of a batch, already computed: a pass over the later ones attends to their keys and values."""

    length: int
    keys: list[Tensor]  # per layer (batch, kv head, prefix, d_head)
    values: list[Tensor]  # per layer (batch, kv head, prefix, d_head)
    visible: list[Tensor]  # per layer (batch or 1, 1, position, position): of all positions, not only the first
    rows: Tensor | None = None  # which rows of the batch; None for all

    def __getitem__(self, rows: Tensor) -> Prefix:
        assert self.rows is None
        return Prefix(self.length, self.keys, self.values, self.visible, rows)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A layer's keys and values with those of the prefix in front, and what the later positions may look at."""
        before, values, visible = self.keys[layer], self.values[layer], self.visible[layer][:, :, self.length :]
        if self.rows is not None:
            rows = self.rows.to(before.device)
            before, values = before[rows], values[rows]
            visible = visible if len(visible) == 1 else visible[rows]
        return torch.cat([before, key], dim=2), torch.cat([values, value], dim=2), visible


# What the current forward pass does inside attention. Set for one pass, and gone after it.
_current: ContextVar[tuple[Probe | None, Prefix | None]] = ContextVar("gossamer_pass", default=(None, None))


def upcast(tensor: Tensor) -> Tensor:
    """At least float32, for what half precision would spoil."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def mix(pattern: Tensor, value: Tensor) -> Tensor:
    """Sum the values by the pattern: (b, head, query, key), (b, kv head, key, d) -> (b, head, query, d)."""
    batch, heads, queries, keys = pattern.shape
    groups = heads // value.shape[1]
    return (pattern.reshape(batch, value.shape[1], groups * queries, keys) @ value).view(batch, heads, queries, -1)


@contextmanager
def probing(probe: Probe | None, prefix: Prefix | None = None) -> Iterator[None]:
    """Hand `probe` and `prefix` to every attention call inside the block, and to none after it."""
    token = _current.set((probe, prefix))
    try:
        yield
    finally:
        _current.reset(token)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers; it returns z as (batch, query, head, d_head)."""
    for argument, what in UNSUPPORTED.items():
        if kwargs.get(argument) is not None:
            raise GossamerError(f"{type(module).__name__} uses {what}, which Gossamer's attention does not reproduce")
    if attention_mask is None or attention_mask.dtype != torch.bool:
        raise GossamerError(
            f"{type(module).__name__} did not pass the boolean mask Gossamer asked for (got "
            f"{None if attention_mask is None else attention_mask.dtype}): its padding and windows would be lost"
        )
    probe, prefix = _current.get()
    visible = attention_mask[..., : key.shape[-2]]
    if prefix is not None:
        key, value, visible = prefix.extend(module.layer_idx, key, value)  # type: ignore[arg-type]
    call = AttentionCall(
        module=module,
        query=query,
        key=key,
        value=value,
        visible=visible,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        dropout=dropout if module.training else 0.0,
    )
    z = call.output if probe is None else probe(call)
    return z.transpose(1, 2).contiguous(), None


def mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask function: always a boolean mask, never skipped, so that `visible` is known in every layer."""
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    made = sdpa_mask(*args, **kwargs)
    assert made is not None
    return made


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
