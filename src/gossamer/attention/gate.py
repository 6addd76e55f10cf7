"""The sparse attention layer: a gate on every edge, driven by the attention score itself.

    score   s_ij = q_i . k_j * scaling, soft-capped where the model does so
    gate    z_ij = (s_ij + bias) / temperature, 1 in the published layer
    sample  g_ij = 1 where z_ij + noise * logit(u_ij) > 0, u uniform, noise 1 or less; its gradient is that of
            sigmoid(z_ij + noise * logit(u_ij))
    decide  g_ij = 1 where z_ij > 0
    out_i   = sum_j softmax(s_i)_j g_ij v_j; with `renormalise`, the softmax is over the open keys only
    share   = mean of sigmoid(z_ij) over the edges of a sample: how many the gates are expected to open

`gated_attention` needs memory for a tile of queries, not for the T x T map: the backward pass computes each tile again,
noise included, which is a function of a seed. `tests/oracles.py` holds the literal version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

TILE = 64  # queries at a time
LARGEST = 40.0  # -z of a gate that never opens; no more, or what follows is denormal, which is slow too
TOGETHER = 2**18  # scores at a time: of short samples, several are done at once


def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    seed: int | None = None,
    first: int = 0,
    noise: float = 1.0,
    temperature: float = 1.0,
    renormalise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gated attention and the expected share of open edges, (batch, head, query, d_head) and (batch, head).

    Args:
        query: (batch, head, query, d_head); key and value (batch, kv head, key, d_head).
        visible: (batch or 1, 1, query, key), True where a query may look. A query that may not look at itself is
            padding: its edges don't count.
        bias: (head,), or (1,) for all heads.
        seed: of the noise; None decides without noise.
        noise: how much of it there is; with 1 a gate is open with probability sigmoid(z).
        temperature: the lower, the nearer are sigmoid(z) and its slope to those of a step.
        first: the first sample's number, so that a batch run in parts gets the noise it would get whole.

    On CUDA this is the place for a fused kernel.
    """
    run: Callable[..., tuple[Tensor, Tensor]] = GatedAttention.apply
    return run(
        query,
        key,
        value,
        bias,
        visible,
        scaling,
        softcap,
        None if seed is None else Noise(seed, first, noise),
        renormalise,
        temperature,
    )


class Noise(NamedTuple):
    seed: int
    first: int  # the first sample's number
    scale: float

    def odds(self, sample: int, start: int, like: Tensor) -> Tensor:
        """exp(-scale * logit(u)) for the queries from `start` on, shaped as `like`."""
        odds = noise_odds(self.seed, self.first + sample, start, like)
        if self.scale == 0.5:
            return odds.sqrt_()  # much faster than pow
        return odds if self.scale == 1 else odds.pow_(self.scale)


@torch.no_grad()
def decided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    renormalise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gated attention without noise or gradient, and how many edges are open: arguments as for `gated_attention`.

    The counts are (batch, head, 3): all edges, those to the first token, and those of a query to itself, but for the
    first token's.
    """
    out = torch.empty_like(query)
    counts = torch.zeros(*query.shape[:2], 3, dtype=torch.long, device=query.device)
    for part in tiles(query, key, value, bias, visible, scaling, softcap, None):
        out[part.samples, :, part.rows] = part.mix(part.tile.pattern * part.tile.gate, renormalise).to(out.dtype)
        gate = (part.tile.gate * part.real).flatten(1, 2)  # (sample, head, query, key)
        own = gate.diagonal(part.rows.start, -2, -1)  # (sample, head, query)
        own = own[..., 1:] if part.rows.start == 0 else own
        counts[part.samples] += torch.stack([gate.sum((-1, -2)), gate[..., 0].sum(-1), own.sum(-1)], dim=-1).long()
    return out, counts


class Tile:
    """The scores and gates of some queries of some samples, computed the same way in both passes."""

    def __init__(
        self,
        scores: Tensor,
        visible: Tensor,
        bias: Tensor,
        softcap: float | None,
        odds: Tensor | None,
        soft: bool,
        temperature: float,
    ) -> None:
        # scores (sample, kv head, group, query, key); visible (sample or 1, 1, 1, query, key);
        # bias (kv head or 1, group or 1, 1, 1)
        self.slope: Tensor | None = None  # of the soft-cap
        if softcap is not None:
            bent = scores.div_(softcap).tanh_()
            self.slope = 1 - bent.square()
            scores = bent * softcap
        # a mask of numbers and gates of numbers: on a CPU, what touches booleans takes several times as long
        lowest = torch.finfo(scores.dtype).min
        scores += torch.zeros_like(visible, dtype=scores.dtype).masked_fill_(~visible, lowest)
        # (1 - p) / p of the gate's probability p = sigmoid(z); exp is slow, ten times and more, where it overflows
        shut_odds = torch.sub(-bias, scores).div_(temperature).clamp_(max=LARGEST).exp_()
        self.probability = (1 + shut_odds).reciprocal_()
        self.soft = self.probability  # the gate that straight-through gradients see
        if odds is not None:
            shut_odds *= odds
            if soft:
                self.soft = (1 + shut_odds).reciprocal_()
        self.gate = shut_odds.lt_(1)  # 1 or 0
        self.pattern = torch.softmax(scores, dim=-1)


class GatedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        visible: Tensor,
        scaling: float,
        softcap: float | None,
        noise: Noise | None,
        renormalise: bool,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(query)
        share = query.new_zeros(query.shape[:2], dtype=accumulator(query))
        edges = count_edges(visible).to(share)  # (batch or 1,)
        for part in tiles(query, key, value, bias, visible, scaling, softcap, noise, temperature):
            tile = part.tile
            out[part.samples, :, part.rows] = part.mix(tile.pattern.mul_(tile.gate), renormalise).to(out.dtype)
            share[part.samples] += (tile.probability.sum(dim=-1) * part.real[..., 0]).sum(dim=-1).flatten(1)
        share /= edges[:, None]
        ctx.save_for_backward(query, key, value, bias, visible, out)
        ctx.options = (scaling, softcap, noise, renormalise, temperature)
        return out, share

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_share: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, visible, out = ctx.saved_tensors
        scaling, softcap, noise, renormalise, temperature = ctx.options
        dtype = accumulator(query)
        d_query = torch.empty_like(query)
        d_key, d_value = (torch.zeros(t.shape, dtype=dtype, device=t.device) for t in (key, value))
        d_bias = torch.zeros(query.shape[1], dtype=dtype, device=query.device)
        per_edge = d_share.to(dtype) / count_edges(visible).to(d_share.device, dtype)[:, None]
        # sum_j A_ij dA_ij, which every softmax gradient needs, is out . d_out
        flow = (out.to(dtype) * d_out.to(dtype)).sum(dim=-1)  # (batch, head, query)
        for part in tiles(query, key, value, bias, visible, scaling, softcap, noise, temperature, soft=True):
            tile, groups = part.tile, part.groups
            d_mixed = d_out[part.samples, :, part.rows].to(dtype).reshape(*groups[:2], -1, query.shape[3])
            weights = tile.pattern * tile.gate
            d_weights = (d_mixed @ part.value.transpose(-1, -2)).view_as(weights)
            correction = flow[part.samples, :, part.rows].reshape(*groups, -1, 1)
            if renormalise:
                kept = weights.sum(dim=-1, keepdim=True)
                shut = kept == 0  # such a row is 0 whatever its weights: nothing flows back
                weights = weights / kept.masked_fill_(shut, 1)
                d_weights = d_weights.sub_(correction).div_(kept).masked_fill_(shut, 0)
                correction = torch.zeros_like(correction)
            d_value[part.samples, :, : part.end] += join(weights).transpose(-1, -2) @ d_mixed
            probability = tile.probability
            slope = (1 - probability).mul_(probability).div_(temperature)
            d_row = part.real * per_edge[part.samples].reshape(*groups, 1, 1)  # of the probabilities in a row
            d_gate = slope if noise is None else (1 - tile.soft).mul_(tile.soft).div_(temperature)
            if ctx.needs_input_grad[3]:
                through = (d_weights * tile.pattern).mul_(d_gate).sum(dim=-1) + slope.sum(dim=-1) * d_row[..., 0]
                d_bias += through.sum(dim=(0, -1)).flatten()
            d_scores = tile.gate.add_(d_gate).mul_(d_weights).sub_(correction).mul_(tile.pattern).addcmul_(slope, d_row)
            if tile.slope is not None:
                d_scores *= tile.slope
            d_scores = join(d_scores)
            d_rows = (d_scores @ part.key).mul_(scaling)
            d_query[part.samples, :, part.rows] = d_rows.view(len(d_rows), query.shape[1], -1, query.shape[3])
            d_key[part.samples, :, : part.end] += d_scores.transpose(-1, -2) @ part.query  # the query is scaled
        d_bias = d_bias if bias.numel() > 1 else d_bias.sum(dim=0, keepdim=True)
        grads = (d_query, d_key.to(key.dtype), d_value.to(value.dtype), d_bias.to(bias.dtype))
        return (*grads, None, None, None, None, None, None)


class Part:
    """One tile of some samples, with what is needed around it."""

    def __init__(
        self, samples: slice, rows: slice, query: Tensor, key: Tensor, value: Tensor, real: Tensor, tile: Tile
    ) -> None:
        self.samples = samples
        self.rows = rows
        self.end = rows.stop  # keys after the last query are invisible
        self.query = query  # (sample, kv head, group * query, d_head), scaled
        self.key = key  # (sample, kv head, key, d_head)
        self.value = value  # (sample, kv head, key, d_head)
        self.real = real  # (sample or 1, 1, 1, query, 1), 0 for padding
        self.tile = tile
        self.groups = tile.pattern.shape[:3]  # samples, kv heads, query heads to each

    def mix(self, weights: Tensor, renormalise: bool) -> Tensor:
        """The values summed by the weights, (sample, head, query, d_head)."""
        mixed = join(weights) @ self.value
        if renormalise:
            kept = join(weights).sum(dim=-1, keepdim=True)
            mixed = mixed / kept.masked_fill(kept == 0, 1)
        return mixed.view(self.groups[0], self.groups[1] * self.groups[2], -1, mixed.shape[-1])


def tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    visible: Tensor,
    scaling: float,
    softcap: float | None,
    noise: Noise | None,
    temperature: float = 1.0,
    soft: bool = False,
) -> Iterator[Part]:
    """Every tile of queries, with the keys up to its last one, in the accumulating type; `soft` gates if asked."""
    batch, heads, length, width = query.shape
    dtype, kv_heads = accumulator(query), key.shape[1]
    groups = heads // kv_heads
    shaped_bias = bias.to(dtype).view(*((kv_heads, groups) if bias.numel() > 1 else (1, 1)), 1, 1)
    together = max(1, TOGETHER // (heads * min(TILE, length) * length))
    for first in range(0, batch, together):
        samples = slice(first, min(first + together, batch))
        seen = visible[samples] if len(visible) > 1 else visible  # (sample or 1, 1, query, key)
        keys, values = key[samples].to(dtype), value[samples].to(dtype)
        n = len(keys)
        for start in range(0, length, TILE):
            end = min(start + TILE, length)
            rows = query[samples, :, start:end].to(dtype).mul(scaling)
            rows = rows.reshape(n, kv_heads, groups * (end - start), width)
            scores = (rows @ keys[:, :, :end].transpose(-1, -2)).view(n, kv_heads, groups, end - start, end)
            odds = None
            if noise is not None:
                drawn = [noise.odds(first + i, start, scores[i]) for i in range(n)]
                odds = torch.stack(drawn) if n > 1 else drawn[0][None]  # a stack is a copy
            tile = Tile(scores, seen[:, :, None, start:end, :end], shaped_bias, softcap, odds, soft, temperature)
            real = seen.diagonal(dim1=-2, dim2=-1)[:, :, None, start:end, None].to(dtype)
            yield Part(samples, slice(start, end), rows, keys[:, :, :end], values[:, :, :end], real, tile)


def noise_odds(seed: int, sample: int, start: int, like: Tensor) -> Tensor:
    """(1 - u) / u for uniform u, shaped as `like`: always the same for the same seed, sample and first query.

    On a CPU torch draws uniform numbers slowly, on one core; 16 random bits a gate do as well, and ten times as fast.
    """
    if like.device.type == "cpu":
        words = np.random.SFC64([seed, sample, start]).random_raw((like.numel() + 3) // 4)
        bits = torch.from_numpy(words.view(np.uint16)[: like.numel()].view(np.int16)).view(like.shape)
        u = bits.to(like.dtype).add_(32768.5).mul_(2.0**-16)
    else:
        generator = torch.Generator(like.device).manual_seed(hash((seed, sample, start)) % 2**63)
        u = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        u = u.clamp_(2.0**-17, 1 - 2.0**-17)
    return u.reciprocal_().sub_(1)


def count_edges(visible: Tensor) -> Tensor:
    """How many edges a sample has, (batch or 1,)."""
    real = visible.diagonal(dim1=-2, dim2=-1)[:, 0]  # (batch or 1, query)
    return (visible[:, 0].sum(dim=-1) * real).sum(dim=-1)


def accumulator(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def join(tensor: Tensor) -> Tensor:
    """(sample, kv head, group, query, key) -> (sample, kv head, group * query, key)"""
    return tensor.flatten(2, 3)
