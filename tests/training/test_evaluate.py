from __future__ import annotations

import pytest
import torch

from gossamer.attention import gating
from gossamer.models import Model, wrap
from gossamer.training.evaluate import measure
from tests.conftest import wrapped


def gated(family: str, *, renormalise: bool) -> Model:
    model = wrapped(family)
    bias = torch.zeros(model.n_layers, model.n_heads)
    gating.install([layer.attention for layer in model.layers], bias, renormalise=renormalise)
    return wrap(model.hf, model.tokenizer, name="gated")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_renormalised_loss_is_that_of_a_model_that_renormalises(family: str) -> None:
    base = wrapped(family)
    blocks = torch.randint(0, base.vocabulary, (3, 12), generator=torch.Generator().manual_seed(0))
    leaky, closed = (measure(gated(family, renormalise=way), base, blocks) for way in (False, True))
    assert leaky["loss_renormalised"] == pytest.approx(closed["loss"], abs=1e-6)
    assert leaky["loss_renormalised"] != pytest.approx(leaky["loss"], abs=1e-6)
    assert closed["loss_renormalised"] == pytest.approx(closed["loss"], abs=1e-6)


def test_a_dense_model_has_nothing_to_renormalise() -> None:
    base = wrapped("gpt2")
    blocks = torch.randint(0, base.vocabulary, (2, 8), generator=torch.Generator().manual_seed(0))
    found = measure(base, base, blocks)
    assert found["loss_renormalised"] == found["loss"]
