"""From scores to an order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RANKINGS = ("sentence", "dataset", "random", "given")
SIGNS = ("absolute", "signed")


def order(scores: Tensor, valid: Tensor, sign: str) -> Tensor:
    """Flat unit indices from most to least important, (prompt, units); units that don't exist come last.

    absolute ranks by |score|: whatever moves the metric. signed ranks by score: what helps first, what hurts last.
    Equal scores keep the order of layer, head, query and key.
    """
    key = (scores.abs() if sign == "absolute" else scores).masked_fill(~valid, -torch.inf)
    return key.flatten(1).argsort(dim=1, descending=True, stable=True)


def ranks(ordered: Tensor, shape: Sequence[int]) -> Tensor:
    """The rank of each unit, (prompt, *shape), from the order of them."""
    positions = torch.arange(ordered.shape[1], dtype=torch.int32, device=ordered.device).expand_as(ordered)
    placed = torch.empty(ordered.shape, dtype=torch.int32, device=ordered.device).scatter_(1, ordered, positions)
    return placed.view(-1, *shape)


def random_scores(rows: Sequence[int], valid: Tensor, seed: int) -> Tensor:
    """Scores by chance, shaped as `valid`: the same for a prompt whatever batch it is in."""
    scores = torch.zeros(valid.shape)
    for i, row in enumerate(rows):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + row) % 2**63)
        scores[i][valid[i].cpu()] = torch.rand(int(valid[i].sum()), generator=generator)
    return scores.to(valid.device)
