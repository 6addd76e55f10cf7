"""What a circuit is made of.

The curve does not know what it ranks. A unit says how to score all of its kind at once from one gradient, how to patch
one of them, and how a forward pass keeps some and replaces the rest.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.attention.function import AttentionCall, Probe, mix, upcast
from gossamer.circuits.activations import Activations
from gossamer.circuits.batch import Batch


class Unit(Protocol):
    name: str
    patterns: bool  # whether scoring and replacing need the attention patterns

    def valid(self, seen: Activations, batch: Batch) -> Tensor:
        """Which units exist, (prompt, layer, *unit) bool."""

    def scores(self, layer: int, clean: Activations, instead: Activations, gradient: Tensor) -> Tensor:
        """First-order effect of replacing each unit of a layer, (prompt, *unit), from dM/dz of that layer."""

    def patchable(self, valid: Tensor, batch: Batch) -> Tensor:
        """The units that can matter, those of positions after the prefix, (prompt, layer, *unit) bool."""

    def patched(self, layer: int, clean: Activations, instead: Activations, index: Tensor) -> Tensor:
        """The layer's z with one unit replaced a row: index (row, 1 + unit dims) -> (row, head, query, d_head)."""

    def keep(self, ranks: Tensor, k: int, instead: Activations) -> Probe:
        """The probe of a pass that keeps units of rank < k, ranks (prompt, layer, *unit), and replaces the others."""


class Heads:
    """A head: its output z at every position."""

    name = "heads"
    patterns = False

    def valid(self, seen: Activations, batch: Batch) -> Tensor:
        prompts, heads = seen.z[0].shape[:2]
        return torch.ones(prompts, len(seen.z), heads, dtype=torch.bool, device=batch.clean.device)

    def scores(self, layer: int, clean: Activations, instead: Activations, gradient: Tensor) -> Tensor:
        return (upcast(clean.z[layer] - instead.z[layer]) * gradient).sum(dim=(-1, -2))

    def patchable(self, valid: Tensor, batch: Batch) -> Tensor:
        return valid

    def patched(self, layer: int, clean: Activations, instead: Activations, index: Tensor) -> Tensor:
        prompt, head = index.unbind(-1)
        z = clean.z[layer][prompt]  # indexing copies
        z[torch.arange(len(z), device=z.device), head] = instead.z[layer][prompt, head]
        return z

    def keep(self, ranks: Tensor, k: int, instead: Activations) -> Probe:
        kept = (ranks < k)[..., None, None]  # (prompt, layer, head, 1, 1)

        def probe(call: AttentionCall) -> Tensor:
            z = call.output
            return torch.where(kept[:, call.layer].to(z.device), z, instead.z[call.layer])

        return probe


class Edges:
    """An edge (head, query, key): what one query takes from one key, A_ij v_j.

    Its tensors are (query, key) maps of all positions, also where a pass ran only those after a prefix: the edges of
    earlier queries score 0.
    """

    name = "edges"
    patterns = True

    def valid(self, seen: Activations, batch: Batch) -> Tensor:
        prompts, heads, _, keys = seen.pattern[0].shape
        before = 0 if batch.prefix is None else batch.prefix.length
        real = torch.arange(keys, device=batch.lengths.device) < batch.lengths[:, None] + before  # (prompt, query)
        real = real[:, None, :, None]
        maps = seen.visible if batch.prefix is None else batch.prefix.visible
        layers = [(visible.to(real.device) & real).expand(prompts, heads, keys, keys) for visible in maps]
        return torch.stack(layers, dim=1)

    def scores(self, layer: int, clean: Activations, instead: Activations, gradient: Tensor) -> Tensor:
        # A_ij v_j . g_i for the clean contribution minus the one that would replace it
        ours = upcast(clean.pattern[layer]) * unmix(gradient, clean.value[layer])
        scores = ours - upcast(instead.pattern[layer]) * unmix(gradient, instead.value[layer])
        queries, keys = scores.shape[-2:]
        return F.pad(scores, (0, 0, keys - queries, 0))

    def patchable(self, valid: Tensor, batch: Batch) -> Tensor:
        if batch.prefix is None:
            return valid
        valid = valid.clone()
        valid[..., : batch.prefix.length, :] = False
        return valid

    def patched(self, layer: int, clean: Activations, instead: Activations, index: Tensor) -> Tensor:
        prompt, head, query, _ = index.unbind(-1)
        z = clean.z[layer][prompt]  # indexing copies
        rows = torch.arange(len(z), device=z.device)
        z[rows, head, query - first_query(clean, layer)] += contribution(instead, layer, index) - contribution(
            clean, layer, index
        )
        return z

    def keep(self, ranks: Tensor, k: int, instead: Activations) -> Probe:
        def probe(call: AttentionCall) -> Tensor:
            queries = call.query.shape[2]  # the last ones, if there is a prefix
            kept = (ranks[:, call.layer, :, -queries:] < k).to(call.value.device)  # (prompt, head, query, key)
            z = mix(call.pattern.masked_fill(~kept, 0), call.value)
            return z + mix(instead.pattern[call.layer].masked_fill(kept, 0), instead.value[call.layer])

        return probe


def first_query(seen: Activations, layer: int) -> int:
    """The position of the first query that was run: after a prefix, there are fewer queries than keys."""
    queries, keys = seen.pattern[layer].shape[-2:]
    return keys - queries


def unmix(gradient: Tensor, value: Tensor) -> Tensor:
    """g_i . v_j: (prompt, head, query, d), (prompt, kv head, key, d) -> (prompt, head, query, key)."""
    prompts, heads, queries, width = gradient.shape
    grouped = gradient.reshape(prompts, value.shape[1], -1, width)
    return (grouped @ value.transpose(-1, -2)).view(prompts, heads, queries, -1)


def contribution(seen: Activations, layer: int, index: Tensor) -> Tensor:
    """A_ij v_j of single edges, (row, d_head)."""
    prompt, head, query, key = index.unbind(-1)
    groups = seen.pattern[layer].shape[1] // seen.value[layer].shape[1]
    weight = seen.pattern[layer][prompt, head, query - first_query(seen, layer), key]
    return weight[:, None] * seen.value[layer][prompt, head // groups, key]


UNITS: dict[str, Unit] = {"heads": Heads(), "edges": Edges()}
