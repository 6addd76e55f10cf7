from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gossamer.attention.function import ORDINARY, AttentionCall, _current, mix, probing
from gossamer.attention.passes import Readout, session
from gossamer.models import Model
from tests.families import random_model


def batch(padded: bool) -> tuple[Tensor, Tensor | None]:
    ids = torch.randint(50, (3, 14), generator=torch.Generator().manual_seed(1))
    if not padded:
        return ids, None
    mask = torch.ones_like(ids)
    mask[0, 9:] = 0
    mask[2, 4:] = 0
    return ids, mask


def by_pattern(call: AttentionCall) -> Tensor:
    return mix(call.pattern, call.value)


@pytest.mark.parametrize("probe", [None, by_pattern], ids=["fused", "pattern"])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_models_own_eager_attention(
    hf: PreTrainedModel, padded: bool, probe: Callable[[AttentionCall], Tensor] | None
) -> None:
    ids, mask = batch(padded)
    with torch.no_grad():
        hf.set_attn_implementation("eager")
        own = hf(ids, attention_mask=mask).logits
        with session(hf, ()) as passes:
            ours = passes(ids, mask, probe=probe)
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    torch.testing.assert_close(ours[real], own[real], atol=1e-5, rtol=1e-5)


def test_a_sliding_window_and_padding_reach_the_function() -> None:
    hf, seen = random_model("mistral"), []

    def probe(call: AttentionCall) -> Tensor:
        seen.append(call.visible)
        return call.output

    ids, mask = batch(padded=True)
    with torch.no_grad(), session(hf, ()) as passes:
        passes(ids, mask, probe=probe)
    i, j = torch.arange(14)[:, None], torch.arange(14)
    assert mask is not None
    expected = (j <= i) & (i - j < 5) & mask.bool()[:, None, :]
    assert torch.equal(seen[0][:, 0], expected)


def test_reading_some_logits_is_reading_them_all(model: Model) -> None:
    ids, mask = batch(padded=True)
    ids = ids % 30
    assert mask is not None
    ends = mask.sum(dim=1) - 1
    tokens = torch.tensor([[3, 4], [5, 6], [7, 8]])
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        full = passes(ids, mask)[torch.arange(3), ends]
        torch.testing.assert_close(passes(ids, mask, read=Readout(ends)), full, atol=1e-5, rtol=1e-5)
        some = passes(ids, mask, read=Readout(ends, tokens))
    torch.testing.assert_close(some, full.gather(1, tokens), atol=1e-5, rtol=1e-5)


def test_starting_at_a_layer_is_running_from_the_start(model: Model) -> None:
    ids, mask = batch(padded=True)
    ids = ids % 30
    residual: list[Tensor] = []
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        full = passes(ids, mask, capture=residual)
        assert len(residual) == 2
        for layer in (1, 2):
            again = passes(ids, mask, start=(layer, residual[layer - 1]))
            torch.testing.assert_close(again, full)


@pytest.mark.parametrize("length", [1, 6, 13])
def test_running_after_a_prefix_is_running_from_the_start(model: Model, length: int) -> None:
    ids, mask = batch(padded=True)
    ids = ids % 30
    assert mask is not None
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        full = passes(ids, mask)
        prefix = passes.prefix(ids, mask, length)
        real = mask[:, length:].bool()
        torch.testing.assert_close(passes(ids[:, length:], prefix=prefix)[real], full[:, length:][real])
        rows = torch.tensor([2, 0, 0])
        some = passes(ids[rows, length:], prefix=prefix[rows])
        torch.testing.assert_close(some[real[rows]], full[rows][:, length:][real[rows]])
        by_pattern_too = passes(ids[:, length:], prefix=prefix, probe=by_pattern)
        torch.testing.assert_close(by_pattern_too[real], full[:, length:][real], atol=1e-5, rtol=1e-5)


def test_embeddings_stand_in_for_tokens(model: Model) -> None:
    ids = torch.randint(30, (2, 7))
    other = torch.randint(30, (2, 7))
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        embeddings = model.hf.get_input_embeddings()(other)
        torch.testing.assert_close(passes(ids, embeddings=embeddings), passes(other))


def test_nothing_is_left_behind_whatever_is_raised(model: Model) -> None:
    hf = model.hf
    hf.train()
    hf.get_input_embeddings().eval()
    frozen = next(hf.parameters())
    frozen.requires_grad_(False)

    def state() -> object:
        return (
            hf.config._attn_implementation,
            [module.training for module in hf.modules()],
            [parameter.requires_grad for parameter in hf.parameters()],
            [sorted(module.__dict__) for module in hf.modules()],
            [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in hf.modules()],
            _current.get(),
        )

    def broken(call: AttentionCall) -> Tensor:
        raise ZeroDivisionError

    before = state()
    captured: list[Tensor] = []
    ids = torch.zeros(1, 3, dtype=torch.long)
    with session(hf, model.layers) as passes:
        logits = passes(ids, capture=captured, read=Readout(torch.tensor([2]), torch.tensor([[1]])))
        assert logits.shape == (1, 1)
    assert state() == before
    with pytest.raises(ZeroDivisionError), session(hf, model.layers) as passes:
        passes(
            ids,
            probe=broken,
            capture=[],
            read=Readout(torch.tensor([2])),
            start=(1, captured[0]),
            embeddings=captured[0],
        )
    assert state() == before


def test_a_probe_ends_with_its_block() -> None:
    def probe(call: AttentionCall) -> Tensor:
        return call.output

    def inside() -> None:
        with probing(probe):
            assert _current.get().probe is probe
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    assert _current.get() is ORDINARY
