"""What must hold of every model and unit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gossamer
from gossamer.attention.passes import Passes, session
from gossamer.circuits import importance
from gossamer.circuits.activations import Activations, Record, replacement
from gossamer.circuits.batch import Batch
from gossamer.circuits.curve import measure
from gossamer.circuits.ranking import order, ranks
from gossamer.circuits.units import UNITS, Unit
from gossamer.models import Model
from gossamer.tasks.pair import EncodedPair, Prompts
from tests import oracles
from tests.conftest import wrapped


def ragged(model: Model, n: int = 6) -> Prompts:
    """Induction prompts cut at the front to different lengths, so that a batch of them is padded."""
    whole = gossamer.prompts("induction", model, n)
    pairs = [
        EncodedPair(pair.pair, pair.clean[i % 3 :], pair.corrupted[i % 3 :], pair.answers, pair.wrong)
        for i, pair in enumerate(whole.pairs)
    ]
    return Prompts(task="ragged", metric=whole.metric, pairs=tuple(pairs), seed=0)


def record(passes: Passes, ids: Tensor, batch: Batch, patterns: bool = True) -> tuple[Activations, Tensor]:
    probe = Record(patterns=patterns)
    with torch.no_grad():
        logits = passes(ids, batch.mask, read=batch.read, probe=probe)
    return probe.seen, batch.metric.values(logits)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_all_kept_is_clean_and_none_kept_is_corrupted(model: Model, unit: Unit) -> None:
    prompts = ragged(model)
    batch = Batch.of(prompts, range(len(prompts)), model.device)
    assert batch.mask is not None
    with session(model.hf, model.layers) as passes:
        _, clean = record(passes, batch.clean, batch)
        seen, corrupted = record(passes, batch.corrupted, batch)
        assert (clean - corrupted).abs().min() > 1e-3
        valid = unit.valid(seen, batch)
        scores = torch.rand(valid.shape, generator=torch.Generator().manual_seed(0))
        ranked = ranks(order(scores, valid, "signed"), valid.shape[1:])
        total = int(valid.flatten(1).sum(1).max())
        values = measure(passes, batch, unit, ranked, seen, [0, total // 2, total])
    torch.testing.assert_close(values[:, 0], corrupted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values[:, 2], clean, atol=1e-5, rtol=1e-5)
    assert (values[:, 1] - clean).abs().max() > 1e-3  # the mask does something


def test_padding_changes_nothing(family: str) -> None:
    model = wrapped(family, torch.float64)  # in float32 rounding swaps units of nearly equal score
    prompts = ragged(model)
    for units in UNITS:
        together = gossamer.circuit(model, prompts, units=units)
        alone = gossamer.circuit(model, prompts, units=units, batch=1)
        assert together.ks == alone.ks
        assert abs(together.metric - alone.metric).max() < 1e-4
        assert (together.total == alone.total).all()


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("ranking", ["sentence", "random"])
def test_a_prompts_curve_does_not_depend_on_its_batch(units: str, ranking: str) -> None:
    model = wrapped("llama", torch.float64)
    prompts = ragged(model)
    some = Prompts(task="some", metric=prompts.metric, pairs=prompts.pairs[:4], seed=0)
    kept = gossamer.circuit(model, prompts, units=units, ranking=ranking)
    fewer = gossamer.circuit(model, some, units=units, ranking=ranking)
    assert abs(kept.metric[:4] - fewer.metric).max() < 1e-4


@pytest.mark.parametrize("importance", ["gradient", "exact", "ig"])
@pytest.mark.parametrize("units", UNITS)
def test_a_shared_beginning_is_computed_once_and_changes_nothing(family: str, units: str, importance: str) -> None:
    model = wrapped(family, torch.float64)
    prompts = gossamer.prompts("induction", model, 40)
    late = tuple(pair for pair in prompts.pairs if pair.pair.template in ("at-5", "at-6"))[:6]
    some = Prompts(task="late", metric=prompts.metric, pairs=late, seed=0)
    batch = Batch.of(some, range(len(some)), model.device)
    with session(model.hf, model.layers) as passes:
        assert batch.after_prefix(passes).clean.shape[1] == 4
    for sign in ("absolute", "signed"):
        fast = gossamer.circuit(model, some, units=units, importance=importance, sign=sign)
        slow = gossamer.circuit(model, some, units=units, importance=importance, sign=sign, reuse_prefix=False)
        assert (fast.total == slow.total).all()
        # Patching an edge of the shared part changes nothing, but without the shortcut only to rounding. Such noise
        # shuffles edges of equal score, and with them what is kept.
        if (units, importance) != ("edges", "exact"):
            assert abs(fast.metric - slow.metric).max() < 1e-4
        torch.testing.assert_close(by_place(fast), by_place(slow), atol=1e-4, rtol=1e-4)


def by_place(found: gossamer.Circuit) -> Tensor:
    """The scores in the order of layer, head, query and key, whatever their rank (all prompts of one length)."""
    scores = found.rankings["scores"]
    if "index" not in found.rankings:
        return scores
    index = found.rankings["index"].long()
    place = ((index[..., 0] * 100 + index[..., 1]) * 100 + index[..., 2]) * 100 + index[..., 3]
    placed = scores.gather(1, place.argsort(dim=1))
    return placed[~placed.isnan()]


def test_edges_of_a_head_sum_to_the_head(model: Model) -> None:
    """Both the contributions themselves and their scores."""
    prompts = ragged(model)
    batch = Batch.of(prompts, range(len(prompts)), model.device)
    with session(model.hf, model.layers) as passes:
        clean, _ = record(passes, batch.clean, batch)
        seen, _ = record(passes, batch.corrupted, batch)
        heads = importance.gradient(passes, batch, UNITS["heads"], seen)
        edges = importance.gradient(passes, batch, UNITS["edges"], seen)
    torch.testing.assert_close(edges.sum(dim=(-1, -2)), heads, atol=1e-4, rtol=1e-4)
    for layer in range(2):
        groups = clean.pattern[layer].shape[1] // clean.value[layer].shape[1]
        value = clean.value[layer].repeat_interleave(groups, dim=1)
        contributions = clean.pattern[layer][..., None] * value[:, :, None]  # (prompt, head, query, key, d_head)
        torch.testing.assert_close(contributions.sum(dim=3), clean.z[layer], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_gradient_is_exact_in_the_linear_limit(unit: Unit) -> None:
    """The closer the replacement is to the clean value, the closer gradient importance comes to exact importance."""
    model = wrapped("gpt2", torch.float64)
    prompts = ragged(model, 3)
    batch = Batch.of(prompts, range(len(prompts)), model.device)
    errors = []
    with session(model.hf, model.layers) as passes:
        clean, _ = record(passes, batch.clean, batch)
        corrupted, _ = record(passes, batch.corrupted, batch)
        for step in (1e-2, 1e-3):
            near = Activations(
                z=[a + step * (b - a) for a, b in zip(clean.z, corrupted.z)],
                pattern=clean.pattern,
                value=[a + step * (b - a) for a, b in zip(clean.value, corrupted.value)],
                visible=clean.visible,
            )
            slope = importance.gradient(passes, batch, unit, near)
            exact = importance.exact(passes, batch, unit, near, rows_per_pass=64)
            valid = unit.valid(clean, batch)
            errors.append(((slope - exact)[valid].abs().max() / exact[valid].abs().max()).item())
    assert errors[0] < 0.1
    assert errors[1] < 0.2 * errors[0] + 1e-4


@pytest.mark.parametrize("sign", ["absolute", "signed"])
def test_sentence_and_dataset_ranking_agree_on_equal_prompts(sign: str) -> None:
    model = wrapped("llama", torch.float64)
    one = gossamer.prompts("induction", model, 1)
    same = Prompts(task="same", metric=one.metric, pairs=one.pairs * 5, seed=0)
    for units in UNITS:
        sentence = gossamer.circuit(model, same, units=units, sign=sign)
        dataset = gossamer.circuit(model, same, units=units, sign=sign, ranking="dataset")
        assert abs(sentence.explained_effect - dataset.explained_effect).max() < 1e-4


@pytest.mark.parametrize("kind", ["mean", "zero"])
def test_removing_all_edges_is_removing_all_heads(model: Model, kind: str) -> None:
    prompts = ragged(model)
    heads = gossamer.circuit(model, prompts, units="heads", replace=kind)
    edges = gossamer.circuit(model, prompts, units="edges", replace=kind)
    assert abs(heads.metric[:, 0] - edges.metric[:, 0]).max() < 1e-4
    assert abs(heads.metric[:, -1] - heads.clean).max() < 1e-4
    assert (heads.explained_effect[[0, -1]].round(5) == [0, 1]).all()


def test_the_mean_is_that_of_all_real_positions() -> None:
    model = wrapped("gpt2")
    prompts = ragged(model)
    sums: list[Tensor] = [torch.zeros(4, 8) for _ in range(2)]
    count = 0
    for pair in prompts.pairs:
        for layer, z in enumerate(oracles.outputs(model, pair.corrupted)):
            sums[layer] += z[0].sum(dim=0)
        count += len(pair)
    means = [s / count for s in sums]
    batch = Batch.of(prompts, range(len(prompts)), model.device)
    with session(model.hf, model.layers) as passes:
        seen, _ = record(passes, batch.corrupted, batch)
        instead = replacement("mean", seen, means)
        ranked = torch.zeros(len(prompts), 2, 4)
        expected = measure(passes, batch, UNITS["heads"], ranked, instead, [0])[:, 0]
    ours = gossamer.circuit(model, prompts, replace="mean").metric[:, 0]
    assert abs(ours - expected.numpy()).max() < 1e-5
