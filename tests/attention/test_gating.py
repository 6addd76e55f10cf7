"""Models with gates: the same in every path, and what they should be at the extremes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.attention import gating
from gossamer.attention.function import NAME, AttentionCall, Counting, Sampling, probing
from gossamer.attention.gate import decided_attention
from gossamer.attention.passes import session
from gossamer.errors import GossamerError
from gossamer.models import Model
from tests import oracles
from tests.attention.test_gate import inputs, masks
from tests.conftest import wrapped


def sparse(family: str, bias: float | Tensor = 0.0, *, renormalise: bool = False) -> Model:
    model = wrapped(family)
    biases = torch.zeros(model.n_layers, model.n_heads) + bias
    gating.install([layer.attention for layer in model.layers], biases, renormalise=renormalise)
    model.hf.set_attn_implementation(NAME)
    return model


def ids_of(model: Model, length: int = 20) -> Tensor:
    return torch.randint(model.vocabulary, (2, length), generator=torch.Generator().manual_seed(3))


def test_wide_open_gates_give_the_models_own_logits(family: str) -> None:
    model = sparse(family, 1e4)
    ids = ids_of(model)
    with torch.no_grad():
        gated = model.hf(ids).logits
        with probing(Sampling(1)):
            drawn = model.hf(ids).logits
        model.hf.set_attn_implementation("eager")
        own = model.hf(ids).logits
    torch.testing.assert_close(gated, own, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(drawn, own, atol=1e-5, rtol=1e-4)


def test_opening_the_gates_for_a_pass_gives_the_base_model(family: str) -> None:
    model = sparse(family)
    ids = ids_of(model)
    with torch.no_grad():
        with session(model.hf, model.layers, open=True) as passes:
            opened = passes(ids)
        with session(model.hf, model.layers) as passes:
            shut = passes(ids)
        model.hf.set_attn_implementation("eager")
        own = model.hf(ids).logits
    torch.testing.assert_close(opened, own, atol=1e-5, rtol=1e-4)
    assert (shut - own).abs().max() > 0.01


def test_shut_gates_leave_nothing(family: str) -> None:
    model = sparse(family, -1e4)
    outputs: list[Tensor] = []
    counting = Counting()

    def keep(call: AttentionCall) -> Tensor:
        outputs.append(call.output)
        return call.output

    with torch.no_grad():
        with probing(keep):
            logits = model.hf(ids_of(model)).logits
        with probing(counting):
            model.hf(ids_of(model))
    assert all(not z.any() for z in outputs)
    assert torch.isfinite(logits).all()
    assert all(not counts.any() for counts in counting.counts.values())


@pytest.mark.parametrize("renormalise", [False, True])
def test_tiles_and_whole_pattern_agree(family: str, renormalise: bool) -> None:
    """The path of evaluation, that of circuits, and the gate written out."""
    model = sparse(family, 0.3, renormalise=renormalise)
    checked = []

    def compare(call: AttentionCall) -> Tensor:
        assert call.gate is not None
        tiled, counts = decided_attention(*call.gated(), **call.options())
        groups = call.query.shape[1] // call.value.shape[1]
        value = call.value.repeat_interleave(groups, dim=1)
        torch.testing.assert_close(tiled, call.pattern @ value, atol=1e-5, rtol=1e-4)
        opened = (call.scores + 0.3 > 0) & call.visible
        assert torch.equal(call.pattern > 0, opened & (call.pattern > 0))
        own = opened.diagonal(dim1=-2, dim2=-1)[..., 1:].sum(-1)
        literal = torch.stack([opened.sum((-1, -2)), opened[..., 0].sum(-1), own], dim=-1)
        assert torch.equal(counts, literal)
        kept = call.pattern.sum(dim=-1)
        if renormalise:
            torch.testing.assert_close(kept, opened.any(-1).to(kept), atol=1e-5, rtol=0)
        checked.append(call.layer)
        return tiled

    with torch.no_grad(), probing(compare):
        model.hf(ids_of(model, 20))
    assert checked == [0, 1]


@pytest.mark.parametrize("mask", ["causal", "window", "padded"])
def test_decided_attention_equals_the_literal_layer(mask: str) -> None:
    query, key, value, bias = inputs(150, kv_heads=2, biases=4)
    visible = masks(150)[mask]
    real = visible.diagonal(dim1=-2, dim2=-1)[..., None]
    out, counts = decided_attention(query, key, value, visible, bias, scaling=0.5)
    expected, _ = oracles.gated_attention(query, key, value, visible, bias, scaling=0.5)
    torch.testing.assert_close(out * real, expected * real, atol=1e-5, rtol=1e-4)
    scores = query @ key.repeat_interleave(2, dim=1).transpose(-1, -2) * 0.5 + bias[:, None, None]
    opened = (scores > 0) & visible & real
    own = opened.diagonal(dim1=-2, dim2=-1)[..., 1:].sum(-1)
    assert torch.equal(counts, torch.stack([opened.sum((-1, -2)), opened[..., 0].sum(-1), own], dim=-1))


def test_a_batch_in_parts_draws_the_same_gates() -> None:
    model = sparse("llama")
    ids = ids_of(model)
    with torch.no_grad():
        with probing(Sampling(7)):
            whole = model.hf(ids).logits
        parts = []
        for row in range(2):
            with probing(Sampling(7, first=row)):
                parts.append(model.hf(ids[row : row + 1]).logits)
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-4)


def test_less_noise_is_nearer_to_the_decision() -> None:
    model = sparse("gpt2")
    ids = ids_of(model)
    with torch.no_grad():
        decided = model.hf(ids).logits
        distances = []
        for noise in (0.0, 0.01, 0.5, 1.0):
            with probing(Sampling(7, noise=noise)):
                distances.append((model.hf(ids).logits - decided).abs().mean().item())
    assert distances[0] < 1e-5
    assert distances == sorted(distances)


def test_a_generating_model_is_sparse_too() -> None:
    """With a cache, one query at a time, the logits are those of the whole text."""
    model = sparse("llama", 0.2)
    ids = ids_of(model, 8)
    with torch.no_grad():
        whole = model.hf(ids).logits
        cache: Any = None
        steps = []
        for position in range(8):
            out = model.hf(ids[:, position : position + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-4, rtol=1e-3)


def test_a_sparse_model_without_its_gates_is_refused() -> None:
    model = wrapped("gpt2")
    model.hf.config.gossamer = {"gate": {}}
    model.hf.set_attn_implementation(NAME)
    with pytest.raises(GossamerError, match="without its gates"):
        model.hf(ids_of(model))


def test_settings_that_do_not_fit_are_refused() -> None:
    good = [[0.0] * 4] * 2
    gating.from_config({"gate": {"bias": good, "renormalise": False}}, 2, 4, "m")
    for section in (
        {},
        {"gate": {"bias": good}},
        {"gate": {"bias": good[:1], "renormalise": False}},
        {"gate": {"bias": [[float("nan")] * 4] * 2, "renormalise": False}},
        {"gate": {"bias": good, "renormalise": "yes"}},
        {"gate": {"bias": [[0.0], [0.0, 1.0]], "renormalise": False}},
        "nonsense",
    ):
        with pytest.raises(GossamerError):
            gating.from_config(section, 2, 4, "m")
