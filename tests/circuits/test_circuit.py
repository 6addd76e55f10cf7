from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import gossamer
from gossamer import GossamerError, Model
from gossamer.bundled import planted
from gossamer.circuits.batch import PASS, Batch, cut, in_batches
from gossamer.circuits.curve import explained_effect, size_at, sizes
from gossamer.circuits.parts import Parts
from gossamer.circuits.ranking import order, ranks
from gossamer.circuits.units import UNITS
from gossamer.files import write_whole
from gossamer.tasks.pair import EncodedPair, Pair, Prompts
from tests.conftest import wrapped


@pytest.mark.parametrize("ranking", ["sentence", "dataset"])
@pytest.mark.parametrize("kind", ["gradient", "exact", "ig"])
def test_the_planted_heads_are_found(planted_model: Model, kind: str, ranking: str) -> None:
    prompts = gossamer.prompts("induction", planted_model, 30)
    found = gossamer.circuit(planted_model, prompts, importance=kind, ranking=ranking)
    scores = found.rankings["scores"].abs().flatten(1)
    expected = {layer * 4 + head for layer, head in (planted.PREVIOUS_TOKEN, planted.INDUCTION)}
    assert all(set(row.topk(2).indices.tolist()) == expected for row in scores)
    assert found.k90 == 2
    assert found.explained_effect[1] < 0.1
    assert found.correct.all()


@pytest.mark.parametrize("kind", ["gradient", "exact"])
def test_the_planted_edges_are_found(planted_model: Model, kind: str) -> None:
    prompts = gossamer.prompts("induction", planted_model, 5)
    found = gossamer.circuit(planted_model, prompts, units="edges", importance=kind)
    assert found.k90 == 2
    for row, pair in enumerate(prompts.pairs):
        asked, last = pair.clean[-1], len(pair) - 1
        at = pair.clean.index(asked)  # where the repeated word was first; the answer stands behind it
        expected = {(*planted.PREVIOUS_TOKEN, at + 1, at), (*planted.INDUCTION, last, at + 1)}
        assert {tuple(edge) for edge in found.rankings["index"][row, :2].tolist()} == expected


def test_random_and_signed_rankings(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 40)
    chance = gossamer.circuit(planted_model, prompts, ranking="random", seed=-(10**18))
    other = gossamer.circuit(planted_model, prompts, ranking="random", seed=2)
    assert (chance.metric != other.metric).any()
    # Two heads of eight: k random ones hold both with probability k (k - 1) / 56.
    expected = np.array([k * (k - 1) / 56 for k in range(9)])
    assert abs(chance.explained_effect - expected).max() < 0.25
    assert chance.summary()["importance"] is None
    signed = gossamer.circuit(planted_model, prompts, sign="signed")
    assert signed.k90 == 2


def test_dataset_ranking_of_edges_needs_shared_positions(planted_model: Model) -> None:
    mixed = gossamer.prompts("induction", planted_model, 20)
    with pytest.raises(GossamerError, match="needs prompts that share their positions"):
        gossamer.circuit(planted_model, mixed, units="edges", ranking="dataset")
    same = gossamer.prompts("induction", planted_model, 20, same_positions=True)
    found = gossamer.circuit(planted_model, same, units="edges", ranking="dataset")
    assert found.k90 == 2
    assert (found.rankings["index"] == found.rankings["index"][:1]).all()


def test_half_precision_runs(planted_model: Model) -> None:
    model = gossamer.load("bundled:induction", dtype="bfloat16")
    prompts = gossamer.prompts("induction", model, 10)
    for units in UNITS:
        found = gossamer.circuit(model, prompts, units=units)
        assert found.k90 == 2
        assert found.rankings["scores"].dtype == torch.float32


def test_an_undefined_effect_is_an_error(planted_model: Model) -> None:
    hf, tokenizer = planted.build()
    with torch.no_grad():
        hf.get_output_embeddings().weight.zero_()
    model = gossamer.wrap(hf, tokenizer, name="mute")
    with pytest.raises(GossamerError, match="the explained effect is undefined"):
        gossamer.circuit(model, gossamer.prompts("induction", model, 5))


def test_unknown_choices_are_errors(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 3)
    for name in ("units", "ranking", "importance", "sign", "replace"):
        with pytest.raises(GossamerError, match=f"unknown {name} 'odd'"):
            gossamer.circuit(planted_model, prompts, **{name: "odd"})  # type: ignore[arg-type]
    with pytest.raises(GossamerError, match="0 IG steps"):
        gossamer.circuit(planted_model, prompts, importance="ig", ig_steps=0)


def test_sizes_of_the_curve() -> None:
    assert sizes("heads", 144) == list(range(145))
    many = sizes("heads", 1024)
    assert many[:129] == list(range(129))
    assert many[-1] == 1024
    assert 250 < len(many) < 400
    edges = np.array(sizes("edges", 123_456))
    assert edges[0] == 0
    assert edges[-1] == 123_456
    for low in (10, 100, 1000, 10_000):
        assert ((edges >= low) & (edges < 10 * low)).sum() >= 12
    assert sizes("edges", 1) == [0, 1]
    assert sizes("heads", 20, "few") == [*range(9), 10, 12, 15, 18, 20]
    assert len(sizes("heads", 144, "few")) < 30
    assert sizes("heads", 20, "sketch") == [0, 1, 2, 3, 4, 6, 9, 13, 19, 20]
    assert sizes("edges", 100, "sketch") == [0, 1, 3, 10, 32, 100]
    assert np.diff(np.log10(sizes("edges", 123_456, "few")[1:])).max() <= 0.31


def test_the_size_at_a_level() -> None:
    ks = [0, 1, 2, 4, 8]
    assert size_at(ks, np.array([0, 0.2, 0.95, 0.5, 1.0]), log=False) == 2
    assert size_at([0, 10, 20], np.array([0, 0.5, 1.0]), log=False) == 18
    assert size_at([1, 10, 1000], np.array([0, 0.8, 1.0]), log=True) == 100
    assert size_at(ks, np.array([0, 0.1, 0.2, 0.3, 0.4]), log=False) is None
    assert size_at(ks, np.array([0.95, 1, 1, 1, 1]), log=False) == 0


def test_the_effect_is_a_ratio_of_means() -> None:
    kept = np.array([[0.0, 1.0], [2.0, 5.0]])
    clean, none = np.array([2.0, 6.0]), np.array([0.0, 2.0])
    assert explained_effect(kept, clean, none).tolist() == [0.0, 2 / 3]


def test_order_and_ranks() -> None:
    scores = torch.tensor([[[1.0, -3.0], [2.0, 0.0]], [[5.0, 1.0], [1.0, -9.0]]])
    valid = torch.ones_like(scores).bool()
    valid[1, 1, 1] = False
    assert order(scores, valid, "absolute").tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    assert order(scores, valid, "signed").tolist() == [[2, 0, 3, 1], [0, 1, 2, 3]]
    assert ranks(order(scores, valid, "signed"), (2, 2))[0].tolist() == [[1, 3], [0, 2]]


def test_the_files(planted_model: Model, tmp_path: Path) -> None:
    prompts = gossamer.prompts("induction", planted_model, 7)
    for units in UNITS:
        found = gossamer.circuit(planted_model, prompts, units=units)
        found.save(tmp_path / units)
        names = {path.name for path in (tmp_path / units).iterdir()}
        assert names == {"circuit.json", "curve.parquet", "curve.png", "prompts.jsonl", "scores.safetensors"}
        frame = pd.read_parquet(tmp_path / units / "curve.parquet")
        assert list(frame.columns) == ["prompt", "k", "metric", "explained_effect"]
        assert len(frame) == 7 * len(found.ks)
        np.testing.assert_allclose(frame.pivot(index="prompt", columns="k", values="metric").to_numpy(), found.metric)
        summary = json.loads((tmp_path / units / "circuit.json").read_text())
        assert summary["k90"] == found.k90
        assert summary["curve"]["explained_effect"] == found.explained_effect.tolist()
        assert summary["model"]["weights"] == planted_model.fingerprint()
        asked = {"units", "ranking", "importance", "sign", "replace", "seed", "versions", "checks"}
        assert asked <= set(summary)
        scores = load_file(tmp_path / units / "scores.safetensors")
        assert scores["scores"].shape[0] == 7
        again = gossamer.prompts(str(tmp_path / units / "prompts.jsonl"), planted_model, None)
        assert [pair.clean for pair in again.pairs] == [pair.clean for pair in prompts.pairs]


def test_memory_running_out_halves_the_batch() -> None:
    tried = []

    def work(rows: object) -> int:
        assert isinstance(rows, list)
        tried.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError("no")
        return sum(rows)

    done = list(in_batches([[0, 1, 2, 3, 4], [5, 6]], work))
    assert tried == [5, 2, 2, 1, 2]
    assert [total for _, total in done] == [1, 5, 4, 11]
    with pytest.raises(GossamerError, match="out of memory with a single prompt"):
        list(in_batches([[9]], lambda rows: (_ for _ in ()).throw(MemoryError())))
    with pytest.raises(RuntimeError, match="other"):
        list(in_batches([[9]], lambda rows: (_ for _ in ()).throw(RuntimeError("other"))))


def test_batches_hold_prompts_that_are_alike() -> None:
    """No other way to cut the prompts in that order computes fewer tokens: all ways are tried."""
    rng = np.random.default_rng(0)
    cpu = torch.device("cpu")
    for prefix in (True, False):
        for _ in range(5):
            pairs = []
            for length in rng.integers(4, 80, size=9).tolist():
                clean = tuple(rng.integers(0, 9, size=length).tolist())
                at = int(rng.integers(0, length - 1))
                corrupted = (*clean[:at], clean[at] + 1, *clean[at + 1 :])
                pairs.append(EncodedPair(Pair("", "", (), ()), clean, corrupted, (0,), (1,)))
            prompts = Prompts(task="", metric="logit_difference", pairs=tuple(pairs), seed=0)
            found = cut(prompts, range(9), 4, cpu, prefix=prefix)
            ordered = [row for rows in found for row in rows]
            assert sorted(ordered) == list(range(9))
            assert max(map(len, found)) <= 4

            def cost(batches: list[list[int]], prompts: Prompts = prompts, prefix: bool = prefix) -> int:
                total = 0
                for rows in batches:
                    batch = Batch.of(prompts, rows, cpu)
                    same = int((batch.clean == batch.corrupted).all(dim=0).long().cumprod(0).sum()) if prefix else 0
                    width = batch.clean.shape[1]
                    total += PASS["cpu"] + len(rows) * (width - same if same >= width / 4 else width)
                return total

            every = []
            for places in range(2**8):
                ends = [n + 1 for n in range(8) if places >> n & 1] + [9]
                batches = [ordered[begin:end] for begin, end in zip([0, *ends], ends)]
                if max(map(len, batches)) <= 4:
                    every.append(cost(batches))
            assert cost(found) == min(every)


@pytest.mark.parametrize("units", UNITS)
def test_an_interrupted_job_goes_on(tmp_path: Path, units: str) -> None:
    model = wrapped("llama")
    prompts = gossamer.prompts("induction", model, 9)
    kwargs = {"units": units, "ranking": "dataset"} if units == "heads" else {"units": units}
    whole = gossamer.circuit(model, prompts, batch=2, **kwargs)  # type: ignore[arg-type]

    def stop_late(stage: str, done: int, total: int) -> None:
        if stage == "curve" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gossamer.circuit(model, prompts, batch=2, parts=Parts(tmp_path), progress=stop_late, **kwargs)  # type: ignore[arg-type]
    done = Parts(tmp_path).done("curve")
    assert 0 < len(done) < 9
    again = gossamer.circuit(model, prompts, batch=2, parts=Parts(tmp_path), **kwargs)  # type: ignore[arg-type]
    assert (again.metric == whole.metric).all()
    torch.testing.assert_close(again.rankings, whole.rankings, rtol=0, atol=0, equal_nan=True)


def test_a_broken_part_is_done_again(tmp_path: Path) -> None:
    Parts(tmp_path).add("curve", {"rows": torch.tensor([0, 1])})
    Parts(tmp_path).add("curve", {"rows": torch.tensor([2])})
    (tmp_path / "curve-000000.safetensors").write_bytes(b"")
    assert Parts(tmp_path).done("curve") == {2}


def test_threads_take_turns(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 10)
    expected = gossamer.circuit(planted_model, prompts, importance="exact").metric
    before = planted_model.hf.config._attn_implementation
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(gossamer.circuit, planted_model, prompts, importance="exact") for _ in range(6)]
    assert all((job.result().metric == expected).all() for job in jobs)
    assert planted_model.hf.config._attn_implementation == before


def test_inference_mode_does_not_matter(planted_model: Model) -> None:
    prompts = gossamer.prompts("induction", planted_model, 5)
    with torch.inference_mode():
        assert gossamer.circuit(planted_model, prompts).k90 == 2


def test_the_prompts_of_a_run_are_the_same_task(stories: Path, tmp_path: Path) -> None:
    """Metric included."""
    model = gossamer.load(stories)
    first = gossamer.circuit(model, gossamer.prompts("greater-than", model, 3))
    first.save(tmp_path)
    again = gossamer.circuit(model, gossamer.prompts(str(tmp_path / "prompts.jsonl"), model, None))
    assert again.prompts.metric == "probability difference"
    assert (again.metric == first.metric).all()


def test_files_are_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def half(temporary: Path) -> None:
        temporary.write_text("ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, half)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_stories15m_knows_who_gets_the_gift(stories: Path) -> None:
    model = gossamer.load(stories)
    prompts = gossamer.prompts("ioi", model, 50)
    found = gossamer.circuit(model, prompts, importance="exact", ranking="dataset")
    assert found.correct.mean() >= 0.9
    assert found.clean.mean() > 6
    assert abs(found.corrupted.mean()) < 0.3 * found.clean.mean()
    best = found.rankings["scores"].mean(dim=0).flatten().topk(4).indices.tolist()
    assert {i // 6 for i in best} <= {0, 1, 4, 5}


@pytest.mark.slow
def test_the_figure_of_the_readme(stories: Path) -> None:
    """Its numbers, to what another machine's arithmetic may change."""
    model = gossamer.load(stories)
    prompts = gossamer.prompts("ioi", model, 100)
    expected = {("heads", "gradient"): 26, ("heads", "ig"): 13, ("heads", "exact"): 13}
    expected |= {("edges", "gradient"): 111, ("edges", "ig"): 45}
    for (units, kind), k90 in expected.items():
        assert gossamer.circuit(model, prompts, units=units, importance=kind).k90 == pytest.approx(k90, rel=0.1)
    assert gossamer.circuit(model, prompts, units="edges", ranking="random").k90 == pytest.approx(6857, rel=0.1)


def test_a_task_the_model_can_not_do_is_said(stories: Path, planted_model: Model) -> None:
    model = gossamer.load(stories)
    found = gossamer.circuit(model, gossamer.prompts("docstring", model, 20))
    assert any("it can't do this task" in warning for warning in found.summary()["warnings"])
    good = gossamer.circuit(planted_model, gossamer.prompts("induction", planted_model, 10))
    assert good.summary()["warnings"] == []
    mean, error = good.effect
    assert mean == pytest.approx(good.clean.mean() - good.metric[:, 0].mean())
    assert 0 < error < 0.05 * mean
    alone = gossamer.circuit(planted_model, gossamer.prompts("induction", planted_model, 1))
    assert alone.summary()["effect_standard_error"] is None


def test_greater_than_by_digits_on_a_real_model(stories: Path) -> None:
    """A model of children's stories knows no years; the probability metric still runs through every stage."""
    model = gossamer.load(stories)
    prompts = gossamer.prompts("greater-than", model, 5)
    assert isinstance(prompts, Prompts)
    found = gossamer.circuit(model, prompts)
    assert found.explained_effect[-1] == pytest.approx(1, abs=1e-4)
