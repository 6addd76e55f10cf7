from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from gossamer.training import losses
from gossamer.training.losses import ALL, Readable, token_losses
from tests.families import random_model


@pytest.mark.parametrize("chunk", [1, 7 * 100, 2**23])
@pytest.mark.parametrize("tokens", [ALL, slice(1, None, 3)])
@pytest.mark.parametrize("on_kl", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_chunks_equal_whole_logits(
    name: str, on_kl: bool, tokens: slice, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loss and every gradient, for a model that only unembeds and one that soft-caps its logits."""
    monkeypatch.setattr(losses, "CHUNK", chunk)
    model, base = (random_model(name, seed=seed).double() for seed in (0, 1))
    read, read_base = Readable.of(model), Readable.of(base)
    assert read.direct == (name == "gpt2")
    ids = torch.randint(model.config.vocab_size, (2, 9))
    with torch.no_grad():
        base_hidden = read_base(ids)
    got = token_losses(ids, read(ids), read, base_hidden, read_base, train_on_kl=on_kl, tokens=tokens)
    (got.kl if on_kl else got.ce).mul(3).backward()
    fast = grads(model)

    model.zero_grad()
    some = list(range(8))[tokens]
    logits = model(ids).logits[:, some].flatten(0, 1).log_softmax(-1)
    theirs = base(ids).logits[:, some].flatten(0, 1).log_softmax(-1).detach()
    targets = ids[:, [position + 1 for position in some]].flatten()
    ce = F.nll_loss(logits, targets)
    kl = F.kl_div(logits, theirs, log_target=True, reduction="batchmean")
    ((kl if on_kl else ce) * 3).backward()
    assert_close = torch.testing.assert_close
    assert_close(got.ce, ce)
    assert_close(got.kl, kl)
    assert_close(got.base_ce, F.nll_loss(theirs, targets))
    assert_close(got.agreement, (logits.argmax(-1) == theirs.argmax(-1)).double().mean())
    assert_close(fast, grads(model))


def grads(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_without_a_base_there_is_nothing_said_of_it() -> None:
    model = random_model("gpt2")
    read = Readable.of(model)
    ids = torch.randint(10, (1, 5))
    got = token_losses(ids, read(ids), read)
    assert torch.isfinite(got.ce)
    assert got.kl.isnan()
    assert got.agreement.isnan()


@pytest.mark.parametrize("bias", [False, True])
def test_in_bfloat16_it_is_the_same_but_for_rounding(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, base_hidden = (torch.randn(2, 9, 16, generator=generator) for _ in range(2))
    hf = random_model("gpt2")
    head = torch.nn.Linear(16, 100, bias=bias)
    hf.set_output_embeddings(head)
    read = Readable(hf, True)
    ids = torch.randint(100, (2, 9), generator=generator)
    found = []
    for enabled in (False, True):
        given = hidden.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got = token_losses(ids, given, read, base_hidden, read, train_on_kl=True)
        got.kl.backward()
        assert got.kl.dtype == torch.float32
        found.append((got.kl.detach(), got.ce, given.grad))
    torch.testing.assert_close(found[1], found[0], atol=5e-3, rtol=5e-2)
    assert not torch.equal(found[1][0], found[0][0])  # it is in bfloat16
