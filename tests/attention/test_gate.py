from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.attention import gate
from gossamer.attention.gate import count_edges, gated_attention, noise_odds
from tests import oracles


def inputs(
    length: int, kv_heads: int = 4, biases: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, 4, length, 8), (2, kv_heads, length, 8), (2, kv_heads, length, 8), (biases,)]
    query, key, value, bias = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return query, key, value, bias


def differentiable(given: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    for tensor in given:
        tensor.requires_grad_()
    return given


def masks(length: int) -> dict[str, Tensor]:
    i, j = torch.arange(length)[:, None], torch.arange(length)
    causal = (j <= i)[None, None]
    padded = causal.expand(2, 1, length, length).clone()
    padded[1, :, :, length - 3 :] = False
    return {"causal": causal, "window": causal & (i - j < 20), "padded": padded & (i - j < 20)}


def noise(seed: int, query: Tensor, key: Tensor) -> Tensor:
    """logit(u) of every edge, put together from the tiles."""
    batch, heads, length, _ = query.shape
    whole = torch.zeros(batch, heads, length, length, dtype=query.dtype)
    for sample, start in itertools.product(range(batch), range(0, length, gate.TILE)):
        end = min(length, start + gate.TILE)
        like = torch.empty(key.shape[1], heads // key.shape[1], end - start, end, dtype=query.dtype)
        whole[sample, :, start:end, :end] = -noise_odds(seed, sample, start, like).log().flatten(0, 1)
    return whole


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(
    ("seed", "scale", "temperature"), [(None, 1.0, 1.0), (None, 1.0, 0.3), (5, 1.0, 1.0), (5, 0.5, 0.5), (5, 0.2, 2.0)]
)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(("kv_heads", "biases"), [(4, 1), (2, 4)])
@pytest.mark.parametrize("mask", ["causal", "window", "padded"])
@pytest.mark.parametrize("length", [9, 150])
def test_tiles_equal_the_whole_map(
    length: int,
    mask: str,
    kv_heads: int,
    biases: int,
    softcap: float | None,
    seed: int | None,
    scale: float,
    temperature: float,
    renormalise: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output, expected share and all gradients, the sampled path with the same noise."""
    monkeypatch.setattr(gate, "TOGETHER", 1 if length > 100 else 2**20)  # one sample at a time, or both together
    visible = masks(length)[mask]
    real = visible.diagonal(dim1=-2, dim2=-1)[..., None]  # what padded queries get is nobody's business
    results = []
    for function in (gated_attention, oracles.gated_attention):
        # float64: the renormalised gradient divides by what is kept, which may be tiny
        given = differentiable(inputs(length, kv_heads, biases, torch.float64))
        query, key, value, bias = given
        if function is gated_attention:
            sampling: dict[str, Any] = {"seed": seed, "noise": scale}
        else:
            sampling = {"noise": None if seed is None else scale * noise(seed, query.detach(), key)}
        options = {
            "scaling": 0.7,
            "softcap": softcap,
            "renormalise": renormalise,
            "temperature": temperature,
            **sampling,
        }
        out, share = function(query, key, value, visible, bias, **options)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out) * real
        slopes = torch.autograd.grad((out * weights).sum() + (share * torch.arange(4)).sum(), given)
        results.append([out * real, share, *slopes])
    for ours, literal in zip(*results, strict=True):
        torch.testing.assert_close(ours, literal, atol=1e-8, rtol=1e-6)


def test_single_precision_is_close() -> None:
    visible = masks(150)["causal"]
    results = []
    for dtype in (torch.float32, torch.float64):
        query, key, value, bias = given = [t.to(dtype).requires_grad_() for t in inputs(150, 2, 4)]
        out, share = gated_attention(query, key, value, visible, bias, scaling=0.7, seed=3)
        results.append([out, share, *torch.autograd.grad(out.square().sum() + share.sum(), given)])
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, atol=1e-5, rtol=1e-5)


def test_half_precision_accumulates_in_single() -> None:
    visible = masks(150)["causal"]
    query, key, value, bias = (t.to(torch.bfloat16) for t in inputs(150, 2, 4))
    out, share = gated_attention(query, key, value, visible, bias, scaling=0.7, seed=3)
    expected, expected_share = gated_attention(
        query.float(), key.float(), value.float(), visible, bias.float(), scaling=0.7, seed=3
    )
    assert out.dtype == torch.bfloat16
    assert share.dtype == torch.float32
    torch.testing.assert_close(share, expected_share)
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("renormalise", [False, True])
def test_gradcheck_with_open_gates(renormalise: bool) -> None:
    """Where every gate is wide open the layer is smooth, and its gradients are those of finite differences."""
    given = differentiable(inputs(7, 2, 4, torch.float64))
    visible = masks(7)["causal"]

    def layer(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return gated_attention(query, key, value, visible, bias + 40, scaling=0.5, softcap=3.0, renormalise=renormalise)

    assert torch.autograd.gradcheck(layer, given)


def test_gradcheck_of_the_share() -> None:
    given = differentiable(inputs(7, 2, 4, torch.float64))
    visible = masks(7)["padded"]

    def share(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return gated_attention(query, key, value, visible, bias, scaling=0.5, softcap=3.0)[1]

    assert torch.autograd.gradcheck(share, given)


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("seed", [None, 1])
def test_rows_without_an_open_gate_are_zero(renormalise: bool, seed: int | None) -> None:
    query, key, value, bias = inputs(70)
    given = differentiable((query, key, value, bias.fill_(-60.0)))
    visible = masks(70)["causal"]
    out, share = gated_attention(query, key, value, visible, bias, scaling=0.7, seed=seed, renormalise=renormalise)
    assert (out == 0).all()
    for slope in torch.autograd.grad(out.sum() + share.sum(), given):
        assert torch.isfinite(slope).all()


def test_open_gates_are_ordinary_attention() -> None:
    query, key, value, _ = inputs(150, 2)
    visible = masks(150)["window"]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=0.7, enable_gqa=True
    )
    for renormalise in (False, True):
        out, share = gated_attention(
            query, key, value, visible, torch.tensor([60.0]), scaling=0.7, seed=1, renormalise=renormalise
        )
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        assert (share == 1).all()


def test_gates_open_as_often_as_they_should() -> None:
    """The noise is uniform, fresh for every seed, sample and tile, and the same for the same ones."""
    like = torch.empty(1, 4, 64, 640)
    draws = {place: noise_odds(*place, like) for place in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 64)]}
    for odds in draws.values():
        u = 1 / (1 + odds)
        for p in (0.01, 0.3, 0.9):
            assert (u < p).float().mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / u.numel()) ** 0.5)
    for (_, a), (_, b) in itertools.combinations(draws.items(), 2):
        assert abs(torch.corrcoef(torch.stack([a, b]).flatten(1).log())[0, 1]) < 0.02
    assert torch.equal(draws[1, 0, 0], noise_odds(1, 0, 0, like))


def test_counting_edges() -> None:
    kinds = masks(30)
    assert count_edges(kinds["causal"]).tolist() == [465]
    assert count_edges(kinds["padded"]).tolist() == [465 - 10 * 11 // 2, 27 * 28 // 2 - 7 * 8 // 2]
