"""Cross-entropy, KL to the base model and top-1 agreement of many tokens, without all their logits at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gossamer.attention.gate import accumulator
from gossamer.attention.passes import forward_as

CHUNK = 2**23  # logits at a time
ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Readable:
    """A model that gives, for tokens, what its unembedding reads: a hidden state, and the weights to make logits of it.

    A model that does more to its logits than unembed (soft-capping, scaling) gives the logits themselves, weight None.
    """

    hf: PreTrainedModel
    direct: bool

    @classmethod
    def of(cls, hf: PreTrainedModel) -> Readable:
        head = hf.get_output_embeddings()
        if type(head) is not nn.Linear:  # a quantised or adapted head knows best how to apply itself
            return cls(hf, False)
        ids = torch.zeros(1, 2, dtype=torch.long, device=hf.device)
        with torch.no_grad():
            logits = hf(input_ids=ids, use_cache=False).logits
            read = cls(hf, True)
            hidden = read(ids)
            same = torch.equal(head(hidden), logits)
        return read if same else cls(hf, False)

    def __call__(
        self, ids: Tensor, run: Callable[..., Any] | None = None, *, states: list[Tensor] | None = None
    ) -> Tensor:
        """(batch, position, d_model), or logits. `run` is the model as accelerate wrapped it; a list of `states` gets
        what comes out of every layer."""
        run = self.hf if run is None else run
        head = self.hf.get_output_embeddings()
        with forward_as(head, lambda hidden: hidden) if self.direct else nullcontext():
            out = run(input_ids=ids, use_cache=False, output_hidden_states=states is not None)
        if states is not None:
            states.extend(out.hidden_states[1:])  # the first are the embeddings
        return out.logits  # type: ignore[no-any-return]

    @property
    def weight(self) -> Tensor | None:
        return self.hf.get_output_embeddings().weight if self.direct else None

    @property
    def bias(self) -> Tensor | None:
        return self.hf.get_output_embeddings().bias if self.direct else None


@dataclass(frozen=True)
class Losses:
    """Means over tokens; those about the base model are NaN without one."""

    ce: Tensor
    kl: Tensor
    base_ce: Tensor
    agreement: Tensor  # share of tokens whose most likely next token is the base model's


def token_losses(
    ids: Tensor,
    hidden: Tensor,
    model: Readable,
    base_hidden: Tensor | None = None,
    base: Readable | None = None,
    *,
    train_on_kl: bool = False,
    agreement: bool = True,
    tokens: slice = ALL,
) -> Losses:
    """The losses of predicting each token of `ids` (batch, position) from those before it, or only of some `tokens`,
    the first not counted.

    Only one of them can be trained on: cross-entropy, or with `train_on_kl` the KL. `agreement` takes time of its own.
    """
    flat = hidden[:, :-1][:, tokens].flatten(0, 1)
    base_flat = None if base_hidden is None else base_hidden[:, :-1][:, tokens].flatten(0, 1).detach()
    base_weights = (None, None) if base is None else (base.weight, base.bias)
    targets = ids[:, 1:][:, tokens].flatten()
    run: Callable[..., tuple[Tensor, Tensor]] = TokenLosses.apply
    loss, others = run(flat, model.weight, model.bias, targets, base_flat, *base_weights, train_on_kl, agreement)
    other, base_ce, agreed = others if base_flat is not None else torch.full_like(others, torch.nan)
    ce, kl = (other, loss) if train_on_kl else (loss, other)
    return Losses(ce, kl, base_ce, agreed)


class TokenLosses(torch.autograd.Function):
    """The loss and, in the same sweep over chunks of tokens, its gradient: logits are made once and never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # (token, d_model), or logits (token, vocabulary) if weight is None
        weight: Tensor | None,  # (vocabulary, d_model)
        bias: Tensor | None,
        targets: Tensor,  # (token,)
        base_hidden: Tensor | None,
        base_weight: Tensor | None,
        base_bias: Tensor | None,
        train_on_kl: bool,
        agreement: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = accumulator(hidden)
        weight, base_weight = in_precision(weight), in_precision(base_weight)
        tokens = len(hidden)
        vocabulary = hidden.shape[1] if weight is None else len(weight)
        needed = ctx.needs_input_grad
        d_hidden = torch.empty_like(hidden) if needed[0] else None
        d_weight = torch.zeros_like(weight, dtype=dtype) if weight is not None and needed[1] else None
        d_bias = torch.zeros_like(bias, dtype=dtype) if bias is not None and needed[2] else None
        sums = torch.zeros(4, dtype=dtype, device=hidden.device)  # ce, kl, base ce, agreement
        size = max(1, CHUNK // vocabulary)
        for start in range(0, tokens, size):
            rows = slice(start, start + size)
            target = targets[rows, None]
            log_p = unembed(hidden[rows], weight, bias).to(dtype).log_softmax(dim=-1)
            sums[0] -= log_p.gather(-1, target).sum()
            if base_hidden is not None:
                log_q = unembed(base_hidden[rows], base_weight, base_bias).to(dtype).log_softmax(dim=-1)
                sums[2] -= log_q.gather(-1, target).sum()
                if agreement:
                    sums[3] += (log_q.argmax(dim=-1) == log_p.argmax(dim=-1)).sum()
                q = log_q.exp()
                sums[1] += torch.linalg.vecdot(q, log_q.sub_(log_p)).sum()
            p = log_p.exp_() if any(needed[:3]) else None
            if p is not None:
                if train_on_kl:
                    p -= q
                else:
                    p.scatter_add_(-1, target, torch.full_like(target, -1, dtype=dtype))
                d_logits = p.div_(tokens)
                if d_hidden is not None:
                    d_hidden[rows] = d_logits if weight is None else (d_logits.to(weight.dtype) @ weight)
                if d_weight is not None:
                    d_weight.addmm_(d_logits.T, hidden[rows].to(dtype))
                if d_bias is not None:
                    d_bias += d_logits.sum(dim=0)
        sums /= tokens
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        others = sums[[0, 2, 3]] if train_on_kl else sums[1:]
        ctx.mark_non_differentiable(others)
        return sums[int(train_on_kl)].clone(), others

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _others: Tensor) -> tuple[Tensor | None, ...]:
        grads = [None if grad is None else grad.mul(d_loss.to(grad.dtype)) for grad in ctx.saved_tensors]
        return (*grads, None, None, None, None, None, None)


def in_precision(weight: Tensor | None) -> Tensor | None:
    """The weight as autocast would have it: cast once, where autocast would do so for every chunk."""
    if weight is None or not torch.is_autocast_enabled(weight.device.type):
        return weight
    return weight.to(torch.get_autocast_dtype(weight.device.type))


def unembed(hidden: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is None:
        return hidden
    return nn.functional.linear(hidden.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))
