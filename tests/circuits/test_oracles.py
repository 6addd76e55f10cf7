"""Every fast path against its slow, literal twin."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import gossamer
from gossamer.attention.passes import session
from gossamer.circuits import importance
from gossamer.circuits.activations import Record
from gossamer.circuits.batch import Batch
from gossamer.circuits.curve import measure
from gossamer.circuits.ranking import order, ranks
from gossamer.circuits.units import UNITS
from tests import oracles
from tests.circuits.test_properties import ragged, record
from tests.conftest import wrapped

TWINS = pytest.mark.parametrize("family", ["gpt2", "llama"])


@TWINS
def test_exact_heads(family: str) -> None:
    model = wrapped(family)
    prompts = ragged(model)
    expected = oracles.exact_heads(model, prompts)
    ours = gossamer.circuit(model, prompts, importance="exact").rankings["scores"]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@TWINS
@pytest.mark.parametrize("replace", ["corrupted", "zero"])
def test_keeping_heads(family: str, replace: str) -> None:
    model = wrapped(family)
    prompts = ragged(model)
    found = gossamer.circuit(model, prompts, replace=replace)
    scores = found.rankings["scores"].abs().flatten(1)
    for k in (1, 3, 6):
        kept = torch.zeros_like(scores).scatter(1, scores.topk(k).indices, 1).bool().view(len(prompts), 2, 4)
        expected = oracles.keep_heads(model, prompts, kept, replace)
        torch.testing.assert_close(torch.tensor(found.metric[:, k]).float(), expected, atol=1e-5, rtol=1e-5)


@TWINS
def test_edge_gradients_are_finite_differences(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Llama's norm computes in float32 whatever it is given, too coarse for a difference quotient.
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, x: nn.functional.rms_norm(x, x.shape[-1:], self.weight))
    model = wrapped(family, torch.float64)
    prompts = ragged(model, 2)
    ours = gossamer.circuit(model, prompts, units="edges")
    for row, pair in enumerate(prompts.pairs):
        expected = oracles.edge_slopes(model, pair, prompts.metric, step=1e-3)
        index, scores = ours.rankings["index"][row].long(), ours.rankings["scores"][row].double()
        index, scores = index[: ours.total[row]], scores[: ours.total[row]]
        assert int(ours.total[row]) == 8 * len(pair) * (len(pair) + 1) // 2
        torch.testing.assert_close(scores, expected[tuple(index.unbind(-1))], atol=1e-5, rtol=1e-4)


@TWINS
def test_exact_edges_are_differences_along_each_edge(family: str) -> None:
    """Replacing an edge is a full step of minus its clean-minus-corrupted contribution."""
    model = wrapped(family)
    prompts = ragged(model, 1)
    pair = prompts.pairs[0]
    clean, corrupted = (oracles.patterns_and_values(model, ids) for ids in (pair.clean, pair.corrupted))
    ours = gossamer.circuit(model, prompts, units="edges", importance="exact").rankings
    target = oracles.run(model, pair, pair.clean, prompts.metric)
    for place in range(0, 400, 37):
        layer, head, query, key = ours["index"][0, place].tolist()
        (a, v), (a2, v2) = clean[layer], corrupted[layer]
        change = a2[head, query, key] * v2[head, key] - a[head, query, key] * v[head, key]

        def edit(at: int, z: torch.Tensor) -> torch.Tensor:
            if at == layer:  # noqa: B023
                z = z.clone()
                z[:, query, head] += change  # noqa: B023
            return z

        with oracles.editing(model, edit):
            expected = target - oracles.run(model, pair, pair.clean, prompts.metric)
        assert ours["scores"][0, place].item() == pytest.approx(expected, abs=1e-5)


@TWINS
def test_keeping_edges(family: str) -> None:
    model = wrapped(family)
    prompts = ragged(model, 3)
    batch = Batch.of(prompts, range(3), model.device)
    with session(model.hf, model.layers) as passes:
        seen, _ = record(passes, batch.corrupted, batch)
        valid = UNITS["edges"].valid(seen, batch)
        scores = torch.rand(valid.shape, generator=torch.Generator().manual_seed(3))
        ranked = ranks(order(scores, valid, "signed"), valid.shape[1:])
        ks = [1, 40, 200, 400]
        values = measure(passes, batch, UNITS["edges"], ranked, seen, ks)
    for row, pair in enumerate(prompts.pairs):
        n = len(pair)
        for column, k in enumerate(ks):
            kept = (ranked[row] < k)[..., :n, :n]
            expected = oracles.keep_edges(model, pair, prompts.metric, kept)
            assert values[row, column].item() == pytest.approx(expected, abs=1e-5)


@TWINS
def test_integrated_gradients(family: str) -> None:
    """Step by step with the model's own attention, embeddings given, and autograd through the output projections."""
    model = wrapped(family)
    prompts = ragged(model, 2)
    steps = 3
    batch = Batch.of(prompts, range(2), model.device)
    with session(model.hf, model.layers) as passes:
        seen, _ = record(passes, batch.corrupted, batch)
        ours = importance.integrated(passes, batch, UNITS["heads"], seen, steps=steps)
    embed = model.hf.get_input_embeddings()
    for row, pair in enumerate(prompts.pairs):
        clean, corrupted = (oracles.outputs(model, ids) for ids in (pair.clean, pair.corrupted))
        start, end = embed(torch.tensor([pair.corrupted])), embed(torch.tensor([pair.clean]))
        expected = torch.zeros(2, 4)
        for step in range(steps):
            seen_z: list[torch.Tensor] = []

            def keep(_layer: int, z: torch.Tensor) -> torch.Tensor:
                seen_z.append(z)  # noqa: B023
                return z

            with oracles.editing(model, keep):
                alpha = (step + 0.5) / steps
                logits = model.hf(inputs_embeds=start + alpha * (end - start)).logits[0, -1]
            metric = logits[list(pair.answers)].mean() - logits[list(pair.wrong)].mean()
            slopes = torch.autograd.grad(metric, seen_z)
            for layer in range(2):
                change = (clean[layer] - corrupted[layer]) * slopes[layer]
                expected[layer] += change.sum(dim=(0, 1, 3)) / steps
        torch.testing.assert_close(ours[row], expected, atol=1e-5, rtol=1e-4)


def test_gradients_need_two_passes_and_read_two_logits() -> None:
    """One clean pass and its backward, over one record of the corrupted pass, scores all units of all prompts."""
    model = wrapped("llama")
    prompts = ragged(model)
    batch = Batch.of(prompts, range(len(prompts)), model.device)
    calls = []
    handle = model.hf.register_forward_hook(lambda _m, _i, out: calls.append(out.logits.shape))
    try:
        with session(model.hf, model.layers) as passes:
            probe = Record(patterns=True)
            with torch.no_grad():
                passes(batch.corrupted, batch.mask, read=batch.read, probe=probe)
            importance.gradient(passes, batch, UNITS["edges"], probe.seen)
    finally:
        handle.remove()
    assert calls == [(6, 1, batch.metric.tokens.shape[1])] * 2
