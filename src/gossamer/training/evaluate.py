"""What is left of a model: its loss, the edges its gates leave open, and how near it still is to its base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.attention import gating
from gossamer.attention.function import Counting, probing
from gossamer.attention.gate import count_edges
from gossamer.attention.passes import session
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.training.blocks import Progress, silent
from gossamer.training.losses import Readable, token_losses

KINDS = ("all", "without the first token", "without the first token and the diagonal")


@dataclass(frozen=True, eq=False)
class Edges:
    """How many edges there are, and how many the decided gates leave open."""

    open: Tensor  # (layer, head, 3), for each of KINDS
    total: Tensor  # (layer, 3)
    queries: int

    @classmethod
    def of(cls, counting: Counting) -> Edges:
        opened, total = [], []
        for layer in sorted(counting.counts):
            counts, visible = counting.counts[layer], counting.visible[layer]
            copies = len(counts) // len(visible)
            real = visible.diagonal(dim1=-2, dim2=-1)[:, 0]  # (batch or 1, query)
            first = (visible[:, 0, :, 0] & real).sum()
            existing = torch.stack([count_edges(visible).sum(), first, real[:, 1:].sum()]) * copies
            opened.append(by_kind(counts.sum(dim=0)))
            total.append(by_kind(existing))
        return cls(torch.stack(opened).cpu(), torch.stack(total).cpu(), int(real.sum()) * copies)

    def __add__(self, other: Edges) -> Edges:
        return Edges(self.open + other.open, self.total + other.total, self.queries + other.queries)

    @property
    def shares(self) -> Tensor:
        """Of each kind, (3,)"""
        return self.open.sum(dim=(0, 1)) / (self.total.sum(dim=0) * self.open.shape[1]).clamp(min=1)

    @property
    def share(self) -> float:
        return float(self.shares[0])

    @property
    def by_head(self) -> Tensor:
        """(layer, head)"""
        return self.open[..., 0] / self.total[:, None, 0]


def by_kind(counts: Tensor) -> Tensor:
    """(..., 3): all, to the first token, to oneself -> all, without the first, without the diagonal too."""
    everything, first, own = counts.unbind(dim=-1)
    return torch.stack([everything, everything - first, everything - first - own], dim=-1)


def decided(read: Readable, ids: Tensor) -> tuple[Tensor, Edges]:
    """A pass with decided gates: what the unembedding reads, and the edges."""
    counting = Counting()
    with torch.no_grad(), probing(counting):
        hidden = read(ids)
    return hidden, Edges.of(counting)


@contextmanager
def running(model: Model) -> Iterator[Readable]:
    """The model, frozen, with our attention."""
    with session(model.hf, model.layers), torch.no_grad():
        yield Readable.of(model.hf)


def measure(
    model: Model, base: Model, blocks: Tensor, *, batch: int = 8, progress: Progress = silent
) -> dict[str, Any]:
    """Compare a sparse model with its base on blocks of text, (n, block)."""
    if model.vocabulary != base.vocabulary:
        raise GossamerError(
            f"{model.name!r} knows {model.vocabulary} tokens and {base.name!r} {base.vocabulary}: these are not a "
            "model and its base"
        )
    sums = torch.zeros(5, dtype=torch.float64)
    edges: Edges | None = None
    with running(model) as read, running(base) as read_base:
        for start in range(0, len(blocks), batch):
            ids = blocks[start : start + batch].to(model.device)
            if model.sparse:
                hidden, more = decided(read, ids)
                edges = more if edges is None else edges + more
                with gating.renormalised(model.hf):
                    renormalised = token_losses(ids, read(ids), read).ce
            else:
                hidden, renormalised = read(ids), None
            base_hidden = read_base(ids.to(base.device)).to(model.device)
            losses = token_losses(ids, hidden, read, base_hidden, read_base)
            shut_out = losses.ce if renormalised is None else renormalised
            means = torch.stack([losses.ce, losses.base_ce, losses.kl, losses.agreement, shut_out])
            sums += means.double().cpu() * len(ids)
            progress("evaluating", min(start + batch, len(blocks)), len(blocks))
    loss, base_loss, kl, agreement, open_only = (sums / len(blocks)).tolist()
    result = {
        "loss": loss,
        "base_loss": base_loss,
        "kl": kl,
        "top1_agreement": agreement,
        "loss_renormalised": open_only,
        "tokens": blocks.shape[0] * (blocks.shape[1] - 1),
        "blocks": blocks.shape[0],
        "block": blocks.shape[1],
    }
    return {**result, **describe_edges(edges, model, blocks)}


def describe_edges(edges: Edges | None, model: Model, blocks: Tensor) -> dict[str, Any]:
    if edges is None:  # a dense model: every edge is there
        return {"edges": 1.0, "edges_without_first": 1.0, "edges_without_first_and_diagonal": 1.0}
    everything, no_first, no_diagonal = edges.shares.tolist()
    layers, heads = edges.by_head.shape
    shut = [f"L{layer}H{head}" for layer, head in (edges.by_head == 0).nonzero().tolist()]
    return {
        "edges": everything,
        "edges_without_first": no_first,
        "edges_without_first_and_diagonal": no_diagonal,
        "edges_per_query": float(edges.open[..., 0].sum() / (edges.queries * layers * heads)),
        "shut_heads": shut,
        "edges_by_head": edges.by_head.tolist(),
    }
