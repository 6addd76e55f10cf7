from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import gossamer
from gossamer.bundled import planted
from gossamer.comparison.choices import combinations
from gossamer.comparison.controls import elsewhere, halves, leak, rephrased, shuffled, untrained
from gossamer.comparison.run import Panel, compare, results, summarise
from gossamer.comparison.stored import Stored
from gossamer.comparison.subsets import completeness_and_minimality, explained, keeping
from gossamer.comparison.tables import baselines, no_effect
from gossamer.comparison.trained import Training
from gossamer.models import Model
from tests.conftest import wrapped

SETTINGS: dict[str, Any] = {"importance": "ig", "sign": "absolute", "replace": "corrupted", "seed": 0}


def symmetric() -> Model:
    """One layer of eight heads that are all the same, in a stream so loud that the last norm is nearly linear."""
    _, tokenizer = planted.build()
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=8, n_embd=64, n_positions=16, vocab_size=len(planted.VOCABULARY))
    hf = GPT2LMHeadModel(config).eval()
    block = hf.transformer.h[0]
    with torch.no_grad():
        hf.transformer.wte.weight *= 60
        block.mlp.c_proj.weight.zero_()
        block.mlp.c_proj.bias.zero_()
        merged = block.attn.c_attn.weight.view(64, 3, 8, 8)
        merged[:] = merged[:, :, :1]
        block.attn.c_attn.bias.zero_()
        out = block.attn.c_proj.weight.view(8, 8, 64)
        out[:] = out[:1]
    return gossamer.wrap(hf, tokenizer, name="symmetric")


def test_a_random_ranking_of_equal_heads_is_a_straight_line() -> None:
    model = symmetric()
    found = gossamer.circuit(model, gossamer.prompts("induction", model, 20), ranking="random")
    assert found.explained_effect == pytest.approx(np.arange(9) / 8, abs=0.02)


def test_shuffled_answers_are_all_there_and_none_at_home(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 30)
    mixed = shuffled(prompts, 0)
    assert sorted(pair.answers for pair in mixed.pairs) == sorted(pair.answers for pair in prompts.pairs)
    assert all(a.clean == b.clean and a.pair.clean == b.pair.clean for a, b in zip(mixed.pairs, prompts.pairs))
    givers = {id(pair.pair.answers) for pair in prompts.pairs}
    assert all(id(pair.pair.answers) in givers for pair in mixed.pairs)
    moved = sum(a.pair.answers is not b.pair.answers for a, b in zip(mixed.pairs, prompts.pairs))
    assert moved == 30
    assert shuffled(prompts, 0) == mixed
    assert shuffled(prompts, 1) != mixed


def test_an_untrained_model_is_the_same_architecture_with_other_weights(planted_model: Model) -> None:
    blank = untrained(planted_model, 0)
    assert blank.hf.config.to_dict() == planted_model.hf.config.to_dict()
    assert blank.fingerprint() != planted_model.fingerprint()
    assert blank.fingerprint() == untrained(planted_model, 0).fingerprint()


@pytest.mark.parametrize("replace", ["corrupted", "mean", "zero"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_set_of_heads_explains_what_the_curve_says(family: str, replace: str) -> None:
    model = wrapped(family)
    prompts = gossamer.prompts("induction", model, 6)
    found = gossamer.circuit(model, prompts, ranking="dataset", replace=replace)
    scores = found.rankings["scores"].double().mean(dim=0).abs()
    order = scores.flatten().argsort(descending=True, stable=True).tolist()
    sets = [[divmod(head, model.n_heads) for head in order[:k]] for k in found.ks]
    assert keeping(model, prompts, sets, replace) == pytest.approx(found.metric, abs=1e-5)
    ends = explained(model, prompts, [sets[0], sets[-1]], replace)
    assert ends == pytest.approx(np.array([0, 1]), abs=1e-6)


def test_the_planted_circuit_is_complete_and_minimal(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 10)
    heads = [planted.PREVIOUS_TOKEN, planted.INDUCTION]
    found = completeness_and_minimality(planted_model, prompts, heads)
    assert found["kept"] == pytest.approx(1, abs=0.05)
    assert found["without_it"] == pytest.approx(0, abs=0.05)
    assert found["idle"] == []
    with_idle = completeness_and_minimality(planted_model, prompts, [*heads, (0, 0)])
    assert with_idle["idle"] == ["L0H0"]


def test_a_ranking_from_elsewhere_on_the_planted_model(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 12)
    scores = gossamer.circuit(planted_model, prompts, ranking="dataset").rankings["scores"]
    found = elsewhere(planted_model, prompts, scores, *halves(12), SETTINGS)
    assert (found["ranked_on"], found["measured_on"]) == (6, 6)
    assert found["k90_own_ranking"] == found["k90_other_ranking"] == 2
    assert found["explained_effect_at_own_k90"] >= 0.9
    assert rephrased(planted_model, prompts, scores, SETTINGS) == {"reason": "the task has one wording"}


def test_a_bad_ranking_from_elsewhere_needs_more(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 6)
    scores = torch.ones(2, 4)
    for layer, head in (planted.PREVIOUS_TOKEN, planted.INDUCTION):
        scores[layer, head] = 0
    found = gossamer.circuit(planted_model, prompts, ranking="given", scores=scores)
    assert found.k90 == 8
    assert found.summary()["ranking"] == "given"
    assert found.summary()["importance"] is None


def test_scores_that_do_not_fit_are_refused(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 2)
    with pytest.raises(gossamer.GossamerError, match="both or neither"):
        gossamer.circuit(planted_model, prompts, ranking="given")
    with pytest.raises(gossamer.GossamerError, match=r"shape \(3, 3\)"):
        gossamer.circuit(planted_model, prompts, ranking="given", scores=torch.ones(3, 3))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted model against itself, with everything measured."""
    out = tmp_path_factory.mktemp("runs") / "run"
    name = "bundled:induction"
    compare([Panel("induction", name, name, name)], out, prompts=24, every=True)
    return out


def test_nonsense_has_no_small_circuit(run: Path) -> None:
    (result,) = results(run)
    for units in ("heads", "edges"):
        found = baselines(result, units)
        assert {"dense", "sparse", "tuned", "random-dense", "nonsense-dense", "untrained"} <= set(found)
        nonsense, real, chance = found["nonsense-dense"], found["dense"], found["random-dense"]
        assert not isinstance(real, str)
        assert not isinstance(chance, str)
        assert isinstance(nonsense, str) or nonsense.k90 is None or nonsense.k90 > 4 * real.k90  # type: ignore[operator]
        assert real.k90 == 2
        assert chance.k90 is None or chance.k90 > 2 * real.k90


def test_a_negligible_effect_is_none(run: Path) -> None:
    (result,) = results(run)
    dense, _ = result.circuits["heads_sentence"]

    def with_effect(effect: float, error: float | None) -> Stored:
        return replace(dense, summary={**dense.summary, "effect": effect, "effect_standard_error": error})

    effect = dense.summary["effect"]
    assert no_effect(dense, dense) == ""
    assert no_effect(with_effect(0.5 * effect, 0.1 * effect), dense) == ""
    assert "chance" in no_effect(with_effect(0.5 * effect, 0.3 * effect), dense)
    assert "chance" in no_effect(with_effect(effect, None), dense)
    assert "nothing" in no_effect(with_effect(-0.009 * effect, 1e-9), dense)
    assert no_effect(with_effect(-0.011 * effect, 1e-9), dense) == ""


def test_a_twin_that_missed_its_bound_is_doubted(run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    start, end = ({"step": step, "held_out_loss": 1.0 + step, "edges": 0.3} for step in (0, 8))
    name = "bundled:induction"
    shares = dict.fromkeys(("kl", "top1_agreement", "edges_without_first", "edges_without_first_and_diagonal"), 0.3)
    evaluation = {"loss": 1.0, "base_loss": 1.0, "edges": 0.3, **shares}
    for kept, doubted in ((0, True), (8, False)):
        training = Training(name, name, 1.1, 1.0, kept, [start, end], evaluation)
        (copied / "training.json").write_text(json.dumps([asdict(training)]))
        doubts = [doubt for entry in summarise(copied) for doubt in entry.doubts]
        assert any("never met the bound" in doubt for doubt in doubts) == doubted


def test_controls_are_in_the_files(run: Path) -> None:
    found = json.loads((run / "controls.json").read_text())["tasks"]["induction"]
    assert found["dense"]["overlap"]["jaccard"] == 1
    assert found["dense"]["overlap"]["by_chance"] < 0.3
    assert found["dense"]["sparse_heads_in_dense"]["explained_effect"] >= 0.9
    assert found["baselines"]["heads"]["dense"]["k90"] == 2
    text = (run / "controls.md").read_text()
    for heading in ("ranked within each prompt", "One ranking of heads", "Dense and sparse circuits", "CPR / CMD"):
        assert heading in text
    drawn = (run / "figures" / "controls.svg").read_text()
    assert ">Induction<" in drawn
    assert drawn.count("ranked by chance") >= 2


def test_every_choice_is_in_the_table(run: Path) -> None:
    frame = pd.read_csv(run / "choices.csv")
    assert len(frame) == len(list(combinations())) == 48
    assert (frame["multiplier"].dropna() == 1).all()  # a model against itself
    best = frame[(frame["units"] == "heads") & (frame["importance"] == "exact") & (frame["replace"] == "corrupted")]
    assert (best["dense_k90"] == 2).all()
    agreed = pd.read_csv(run / "agreement.csv")
    assert agreed["spearman"].between(-1, 1).all()
    assert agreed["overlap_of_top_k"].between(0, 1).all()


def test_the_leak_is_measured_and_mended(tmp_path: Path) -> None:
    from gossamer.attention import gating

    model = wrapped("gpt2")
    gating.install([layer.attention for layer in model.layers], torch.zeros(model.n_layers, model.n_heads))
    model = gossamer.wrap(model.hf, model.tokenizer, name="gated")
    prompts = gossamer.prompts("induction", model, 4)
    gossamer.circuit(model, prompts, **SETTINGS).save(tmp_path)
    found = leak(model, prompts, Stored.read(tmp_path), SETTINGS)
    assert set(found) == {"as_trained", "renormalised"}
    assert found["as_trained"]["clean"] != found["renormalised"]["clean"]
    assert not any(gate.renormalise for gate in gating.gates(model.hf))  # and left as it was


def test_the_checks_of_a_circuit_replace_as_the_run_does(tmp_path: Path) -> None:
    compare([Panel("induction", *["bundled:induction"] * 2)], tmp_path / "run", prompts=6, replace="zero")
    (result,) = results(tmp_path / "run")
    dense = result.circuits["heads_dataset"][0]
    assert dense.k90 is not None
    checked = json.loads((result.folder / "controls/dense.json").read_text())
    at_k90 = dense.effect[dense.ks.index(dense.k90)]
    assert checked["circuit"]["kept"] == pytest.approx(at_k90, abs=1e-5)
    assert checked["sparse_heads_in_dense"]["explained_effect"] == pytest.approx(at_k90, abs=1e-5)
