from __future__ import annotations

import pytest
import torch

from gossamer.attention import gating
from gossamer.errors import GossamerError
from gossamer.training.losses import token_losses
from gossamer.training.settings import Settings
from gossamer.training.student import START, Student
from tests.conftest import wrapped


@pytest.mark.parametrize("lora", [None, 4])
def test_the_base_stays_the_base(family: str, lora: int | None) -> None:
    """Whatever has been trained, adapters and gates included."""
    model = wrapped(family)
    ids = torch.randint(model.vocabulary, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = model.hf(ids).logits
    settings = Settings(lora=lora, bias=-1.0)
    student = Student(model, settings)
    student.install_gates(settings)
    with torch.no_grad():
        for parameter in student.trainable().values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        with student.base() as base:
            hidden = base(ids)
        logits = hidden if base.weight is None else torch.nn.functional.linear(hidden, base.weight, base.bias)
        torch.testing.assert_close(logits, own, atol=1e-5, rtol=1e-4)
        changed = student.hf(ids).logits
    assert (changed - own).abs().max() > 0.01


def test_what_is_trained() -> None:
    model = wrapped("gpt2")

    def trained(**options: object) -> set[str]:
        settings = Settings(bias=1.0, **options)  # type: ignore[arg-type]
        student = Student(wrapped("gpt2"), settings)
        student.install_gates(settings)
        return set(student.trainable())

    everything = {name for name, _ in model.hf.named_parameters()}
    gates = {f"transformer.h.{layer}.attn.{gating.ATTRIBUTE}.bias" for layer in range(2)}
    assert trained(train="all") == everything | gates
    assert trained(train="body") == (everything | gates) - {"transformer.wte.weight"}
    assert trained(train="attention") == {name for name in everything | gates if ".attn." in name}
    assert trained(train="all", learn_bias=False) == everything
    assert all("lora" in name or name in gates for name in trained(lora=2))
    assert trained(lora=2) > gates


def test_calibration_costs_what_it_may() -> None:
    model = wrapped("llama")
    text = torch.randint(model.vocabulary, (8, 32), generator=torch.Generator().manual_seed(0))
    costs, shares = [], []
    for margin in (0.01, 1.0):
        student = Student(model, Settings())
        student.install_gates(Settings(), lambda: text, margin)
        with torch.no_grad():
            with student.base() as base:
                theirs = base(text)
            kl = token_losses(text, student.read(text), student.read, theirs, student.read_base).kl.item()
        assert kl <= START * margin
        costs.append(kl)
        shares.append(gating.biases(student.hf).mean().item())
    assert costs[0] < costs[1]
    assert shares[0] > shares[1]  # the wider margin shuts more


def test_what_can_not_be_trained_is_refused() -> None:
    with pytest.raises(GossamerError, match="float32"):
        Student(wrapped("gpt2", torch.bfloat16), Settings())
    sparse = wrapped("gpt2")
    gating.install([layer.attention for layer in sparse.layers], torch.zeros(2, 4))
    with pytest.raises(GossamerError, match="sparse already"):
        Student(sparse, Settings())
