"""Forward passes of a Hugging Face model through Gossamer's attention, leaving the model as it was.

`session` puts our attention in and takes it out again. Inside it, each call of `Passes` is one forward pass that
reads logits only where they are wanted, and may probe attention, replace the embeddings, capture the residual
stream between layers, or start at a later layer from a captured one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gossamer.attention.function import NAME, AttentionCall, Prefix, Probe, probing

_locks: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Layer:
    """A decoder layer and what it returns: transformers' layers give a tensor, or a tuple that starts with one."""

    module: nn.Module
    attention: nn.Module  # inside it
    tuple_length: int | None

    def wrap(self, hidden: Tensor) -> Any:
        return hidden if self.tuple_length is None else (hidden, *[None] * (self.tuple_length - 1))


@dataclass(frozen=True, eq=False)
class Readout:
    """Where logits are wanted: one position of each row, and of the vocabulary all (None) or some tokens."""

    positions: Tensor  # (batch,)
    tokens: Tensor | None = None  # (batch, n)


@dataclass(frozen=True, eq=False)
class Passes:
    """Forward passes inside a session."""

    hf: PreTrainedModel
    layers: Sequence[Layer]
    open: bool = False  # every gate, so that a sparse model is its dense self

    def __call__(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        read: Readout | None = None,
        probe: Probe | None = None,
        embeddings: Tensor | None = None,
        capture: list[Tensor] | None = None,
        start: tuple[int, Tensor] | None = None,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """One forward pass of `ids` (batch, position); logits (batch, n), or all of them if `read` is None.

        mask: 1 for tokens, 0 for right padding; None if there is no padding.
        embeddings: stand in for the token embeddings, (batch, position, d_model).
        capture: gets the residual stream after each layer, (batch, position, d_model).
        start: (layer, residual stream entering it): earlier layers are not run.
        prefix: earlier positions, already computed; `ids` are those that follow.
        """
        with ExitStack() as stack:
            stack.enter_context(probing(probe, prefix, open=self.open))
            if embeddings is not None:
                given = embeddings
                embed = self.hf.get_input_embeddings()
                handle = embed.register_forward_hook(lambda *_: given)
                stack.callback(handle.remove)
            if capture is not None:
                kept = capture
                for layer in self.layers:
                    handle = layer.module.register_forward_hook(lambda _m, _i, out: kept.append(first(out)))
                    stack.callback(handle.remove)
            if start is not None:
                index, hidden = start
                for layer in self.layers[:index]:
                    skipped = layer.wrap(hidden)
                    stack.enter_context(forward_as(layer.module, lambda *_a, _s=skipped, **_k: _s))
            if read is not None:
                head = self.hf.get_output_embeddings()
                stack.enter_context(forward_as(head, reader(head, read)))
            # The sequence length is explicit in `ids`; a key-value cache would only cost memory.
            more = {}
            if prefix is not None:
                more["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None] + prefix.length
            logits: Tensor = self.hf(input_ids=ids, attention_mask=mask, use_cache=False, **more).logits
        return logits if read is None else logits[:, 0]

    def prefix(self, ids: Tensor, mask: Tensor | None, length: int) -> Prefix:
        """Compute the first `length` positions of `ids`, for passes over the others."""
        seen = Prefix(length, [], [], [])

        def keep(call: AttentionCall) -> Tensor:
            seen.keys.append(call.key[:, :, :length])
            seen.values.append(call.value[:, :, :length])
            seen.visible.append(call.visible)
            return call.output

        with torch.no_grad():
            nothing = torch.zeros(len(ids), dtype=torch.long)
            self(ids, mask, read=Readout(nothing, nothing[:, None]), probe=keep)
        return seen


def first(out: Any) -> Tensor:
    tensor = out[0] if isinstance(out, tuple) else out
    assert isinstance(tensor, Tensor)
    return tensor


def reader(head: nn.Module, read: Readout) -> Callable[[Tensor], Tensor]:
    """The unembedding, at the read positions and tokens only.

    It stands in for the head's own forward, so that whatever the model does to its logits afterwards (soft-capping,
    scaling) still happens.
    """
    full: Callable[[Tensor], Tensor] = head.forward

    def forward(hidden: Tensor) -> Tensor:
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        last = hidden[rows, read.positions.to(hidden.device)].unsqueeze(1)  # (batch, 1, d_model)
        if read.tokens is None:
            return full(last)
        tokens = read.tokens.to(hidden.device)
        if type(head) is not nn.Linear:  # a quantised or adapted head knows best how to apply itself
            return full(last).gather(-1, tokens.unsqueeze(1))
        logits: Tensor = last @ head.weight[tokens].transpose(-1, -2)  # (batch, 1, n)
        return logits if head.bias is None else logits + head.bias[tokens].unsqueeze(1)

    return forward


@contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let `module` run `forward` inside the block. A forward set on the instance before (accelerate) comes back."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


@contextmanager
def session(
    hf: PreTrainedModel, layers: Sequence[Layer], *, implementation: str = NAME, open: bool = False
) -> Iterator[Passes]:
    """Run `hf` with our attention (or another one), in evaluation mode and with frozen weights; then undo it all.

    open: every gate, so that a sparse model is its dense self. Another thread that wants the same model waits.
    """
    with (
        _locks.setdefault(hf, threading.RLock()),
        torch.inference_mode(False),
        _session(hf, layers, implementation, open) as run,
    ):
        yield run


@contextmanager
def _session(hf: PreTrainedModel, layers: Sequence[Layer], implementation: str, open: bool) -> Iterator[Passes]:
    configs = {id(m.config): m.config for m in hf.modules() if isinstance(m, PreTrainedModel)}
    implementations = [(config, config._attn_implementation) for config in configs.values()]
    training = [module for module in hf.modules() if module.training]
    trainable = [parameter for parameter in hf.parameters() if parameter.requires_grad]
    try:
        hf.set_attn_implementation(implementation)
        hf.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield Passes(hf, layers, open)
    finally:
        for config, before in implementations:
            config._attn_implementation = before
        for module in training:
            module.training = True
        for parameter in trainable:
            parameter.requires_grad_(True)
