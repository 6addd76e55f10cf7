"""The one attention function, for every model.

transformers asks for an attention function by name. Ours computes ordinary attention, gated where the layer has a gate.
What else one forward pass does is a value handed in for it: a *probe* sees each layer's call and decides what leaves
it, which is all there is to recording and patching; `Sampling` draws the gates, `Counting` counts the open edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from gossamer.attention.gate import decided_attention, gated_attention
from gossamer.attention.gating import ATTRIBUTE, SECTION, Gate
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
    gate: Gate | None = None

    @property
    def layer(self) -> int:
        layer = self.module.layer_idx
        assert isinstance(layer, int)
        return layer

    @cached_property
    def scores(self) -> Tensor:
        """(batch, head, query, key), before the softmax; those of invisible keys mean nothing."""
        batch, heads, queries, width = self.query.shape
        groups = heads // self.key.shape[1]  # query heads that share one key head
        query = self.query.reshape(batch, self.key.shape[1], groups * queries, width)
        scores = (query @ self.key.transpose(-1, -2)).view(batch, heads, queries, -1) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores

    @cached_property
    def pattern(self) -> Tensor:
        """The attention weights, (batch, head, query, key); 0 where the gate is shut."""
        scores = self.scores.masked_fill(~self.visible, torch.finfo(self.scores.dtype).min)
        pattern = upcast(scores).softmax(dim=-1)
        if self.gate is not None:
            pattern = self.gate.apply_to(pattern, upcast(self.scores), self.visible)
        return pattern.to(self.value.dtype)

    @cached_property
    def output(self) -> Tensor:
        """Each head's output z, (batch, head, query, d_head)."""
        if self.gate is not None and not torch.is_grad_enabled() and self.query.shape[2] == self.key.shape[2]:
            return decided_attention(*self.gated(), **self.options())[0]  # no T x T map
        if self.softcap is not None or self.gate is not None or "pattern" in self.__dict__:
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

    def gated(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        assert self.gate is not None
        return self.query, self.key, self.value, self.visible, self.gate.bias

    def options(self) -> dict[str, Any]:
        assert self.gate is not None
        return {"scaling": self.scaling, "softcap": self.softcap, "renormalise": self.gate.renormalise}


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


@dataclass(eq=False)
class Sampling:
    """Draw the gates, as in training."""

    seed: int | None  # None decides instead
    first: int = 0  # the first row's number in the whole batch
    noise: float = 1.0
    temperature: float = 1.0
    shares: dict[int, Tensor] = field(default_factory=dict)  # filled: by layer (batch, head), expected share open

    def __call__(self, call: AttentionCall) -> Tensor:
        seed = None if self.seed is None else self.seed * 4096 + call.layer  # noise of its own for every layer
        options = {
            **call.options(),
            "seed": seed,
            "first": self.first,
            "noise": self.noise,
            "temperature": self.temperature,
        }
        z, self.shares[call.layer] = gated_attention(*call.gated(), **options)
        return z


@dataclass(eq=False)
class Counting:
    """Decide the gates, and count the open edges."""

    counts: dict[int, Tensor] = field(default_factory=dict)  # filled: by layer (batch, head, 3), see decided_attention
    visible: dict[int, Tensor] = field(default_factory=dict)  # filled: by layer (batch or 1, 1, query, key)

    def __call__(self, call: AttentionCall) -> Tensor:
        z, self.counts[call.layer] = decided_attention(*call.gated(), **call.options())
        self.visible[call.layer] = call.visible
        return z


@dataclass(frozen=True, eq=False)
class Pass:
    """What one forward pass does inside attention."""

    probe: Probe | None = None
    prefix: Prefix | None = None
    open: bool = False  # every gate, so that the model is its dense self


ORDINARY = Pass()
_current: ContextVar[Pass] = ContextVar("gossamer_pass", default=ORDINARY)  # set for one pass, and gone after it


def upcast(tensor: Tensor) -> Tensor:
    """At least float32, for what half precision would spoil."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def mix(pattern: Tensor, value: Tensor) -> Tensor:
    """Sum the values by the pattern: (b, head, query, key), (b, kv head, key, d) -> (b, head, query, d)."""
    batch, heads, queries, keys = pattern.shape
    groups = heads // value.shape[1]
    return (pattern.reshape(batch, value.shape[1], groups * queries, keys) @ value).view(batch, heads, queries, -1)


@contextmanager
def probing(probe: Probe | None, prefix: Prefix | None = None, *, open: bool = False) -> Iterator[None]:
    """Hand these to every attention call inside the block, and to none after it."""
    token = _current.set(Pass(probe, prefix, open))
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
    now = _current.get()
    visible = attention_mask[..., : key.shape[-2]]
    if now.prefix is not None:
        key, value, visible = now.prefix.extend(module.layer_idx, key, value)  # type: ignore[arg-type]
    gate = getattr(module, ATTRIBUTE, None)
    if gate is None and hasattr(getattr(module, "config", None), SECTION):
        raise GossamerError("this model is sparse but was loaded without its gates: load it with gossamer.load")
    call = AttentionCall(
        module=module,
        query=query,
        key=key,
        value=value,
        visible=visible,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        dropout=dropout if module.training else 0.0,
        gate=None if now.open else gate,
    )
    z = call.output if now.probe is None else now.probe(call)
    return z.transpose(1, 2).contiguous(), None


def refuse_ungated(module: nn.Module, _arguments: Any) -> None:
    """Before a layer with a gate runs: another attention would run it dense without a word."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", NAME)
    if chosen != NAME and hasattr(module, ATTRIBUTE) and not _current.get().open:
        raise GossamerError(
            f"this model is sparse, and {chosen!r} attention would run it without its gates: "
            f"set_attn_implementation({NAME!r}) puts them back"
        )


def mask(*args: Any, **kwargs: Any) -> Tensor:
    """The mask function: always a boolean mask, never skipped, so that `visible` is known in every layer."""
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    made = sdpa_mask(*args, **kwargs)
    assert made is not None
    return made


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
