from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import gossamer
from gossamer.bundled import planted
from gossamer.circuits import importance
from gossamer.comparison.multiplier import MEASURES, Multiplier, multiplier, times
from gossamer.comparison.patterns import Patterns
from gossamer.comparison.run import Panel, compare, folders, results, summarise
from gossamer.comparison.same import check_same_model
from gossamer.comparison.stored import Stored
from gossamer.comparison.trained import Training
from gossamer.errors import GossamerError
from gossamer.figures.grid import visible_cells
from gossamer.figures.panels import model_label, multiplier_text
from gossamer.files import only_process
from gossamer.models import find_folder
from tests.test_cli import call, refused

FIGURES = [*MEASURES, "grid_induction"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The planted model, and one in which two heads share the work of its induction head."""
    folder = tmp_path_factory.mktemp("shared")
    hf, tokenizer = planted.build()
    layer, head = planted.INDUCTION
    attention: Any = hf.transformer.h[layer].attn
    with torch.no_grad():
        for part, (old, new) in enumerate(
            zip(planted.views(attention, head), planted.views(attention, head + 1), strict=True)
        ):
            if part == 3:
                old /= 2
            new.copy_(old)
        bias = attention.c_attn.bias.view(3, planted.HEADS, planted.D_HEAD)
        bias[:, head + 1] = bias[:, head]
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), "bundled:induction"


@pytest.fixture(scope="module")
def finished(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Multiplier]]:
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, compare([Panel("induction", *pair)], out, prompts=12)


def test_the_multiplier_is_that_of_the_two_circuits(
    finished: tuple[Path, list[Multiplier]], pair: tuple[str, str]
) -> None:
    _, table = finished
    for entry, (units, ranking) in zip(table, MEASURES.values(), strict=True):
        k90s = []
        for name in pair:
            model = gossamer.load(name)
            prompts = gossamer.prompts("induction", model, 12)
            k90s.append(gossamer.circuit(model, prompts, units=units, ranking=ranking, importance="ig").k90)
        assert [entry.dense, entry.sparse] == k90s
        assert entry.value == k90s[0] / k90s[1]  # type: ignore[operator]
        assert entry.interval[0] <= entry.value <= entry.interval[1]  # type: ignore[operator]


def test_what_circuits_share_changes_none_of_them(
    finished: tuple[Path, list[Multiplier]], pair: tuple[str, str]
) -> None:
    """Clean and corrupted metrics and scores are handed from circuit to circuit: each is as if found alone."""
    panel = finished[0] / "panels" / "induction"
    for side, name in zip(("dense", "sparse"), pair, strict=True):
        model = gossamer.load(name)
        prompts = gossamer.prompts("induction", model, 12)
        found = {panel / side / measure: choice for measure, choice in MEASURES.items()}
        found |= {panel / "controls" / f"random-{side}-{units}": (units, "random") for units in ("heads", "edges")}
        for folder, (units, ranking) in found.items():
            stored = Stored.read(folder)
            sizes = stored.summary["sizes"]
            alone = gossamer.circuit(model, prompts, units=units, ranking=ranking, importance="ig", sizes=sizes)
            np.testing.assert_allclose(stored.kept, alone.metric, atol=1e-5)
            np.testing.assert_allclose(stored.clean, alone.clean, atol=1e-5)
            summary = alone.summary()
            for key in ("accuracy", "corrupted", "k90"):
                assert stored.summary[key] == pytest.approx(summary[key], abs=1e-5)
            if units == "heads":
                torch.testing.assert_close(stored.scores()["scores"], alone.rankings["scores"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gradient", "ig"])
def test_scores_of_heads_are_taken_from_the_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], kind: str
) -> None:
    """All three circuits of a model take as many gradients as that of edges alone."""
    calls = count_calls(monkeypatch, "differentiate")
    for name in pair:
        model = gossamer.load(name)
        gossamer.circuit(model, gossamer.prompts("induction", model, 6), units="edges", importance=kind)
    alone = calls.pop("differentiate")
    compare([Panel("induction", *pair)], tmp_path / "run", prompts=6, importance=kind, controls=False)
    assert calls["differentiate"] == alone > 0


def test_every_head_is_patched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]) -> None:
    """By `exact` edges say nothing of heads: the two rankings of heads share one patching of them."""
    calls = count_calls(monkeypatch, "exact")
    for name in pair:
        model = gossamer.load(name)
        for units in ("edges", "heads"):
            gossamer.circuit(model, gossamer.prompts("induction", model, 2), units=units, importance="exact")
    alone = calls.pop("exact")
    compare([Panel("induction", *pair)], tmp_path / "run", prompts=2, importance="exact", controls=False)
    assert calls["exact"] == alone > 0


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Counter[str]:
    calls: Counter[str] = Counter()
    original = getattr(importance, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return original(*arguments, **options)

    monkeypatch.setattr(importance, name, counted)
    return calls


def test_the_planted_circuit_is_the_smaller_one(finished: tuple[Path, list[Multiplier]]) -> None:
    _, table = finished
    assert (table[0].dense, table[0].sparse, table[0].value) == (3, 2, 1.5)


def test_the_files(finished: tuple[Path, list[Multiplier]]) -> None:
    out, table = finished
    for name in FIGURES:
        for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
            assert (out / "figures" / f"{name}.{kind}").read_bytes().startswith(start)
    rows = json.loads((out / "multipliers.json").read_text())
    assert [row["multiplier"] for row in rows] == [entry.value for entry in table]
    assert len(pd.read_csv(out / "multipliers.csv")) == len(table)
    assert json.loads((out / "training.json").read_text()) == []  # neither was post-trained


def test_figures_are_drawn_again_without_a_model(
    finished: tuple[Path, list[Multiplier]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = finished

    def no_model(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("gossamer.comparison.run.load", no_model)
    before = {name: (out / "figures" / f"{name}.svg").read_text() for name in FIGURES}
    for name in FIGURES:
        (out / "figures" / f"{name}.svg").unlink()
    assert call("figures", str(out)) == 0
    for name in FIGURES:
        assert (out / "figures" / f"{name}.svg").read_text() == before[name]
    for measure, entry in zip(MEASURES, table, strict=True):
        words = re.findall(r"<text[^>]*>(.*?)</text>", before[measure])
        units = MEASURES[measure][0].capitalize()
        for expected in ("Induction", "Explained Effect", f"Number of {units} Kept", multiplier_text(entry)):
            assert expected in words
        assert "Sparse" in before[measure]
        assert {"0.0", "0.5", "1.0"} <= set(words)
    labels = set(re.findall(r"L\dH\d", before["grid_induction"]))
    assert {"L0H1", "L1H2"} <= labels


def test_line_data_are_the_curves(finished: tuple[Path, list[Multiplier]]) -> None:
    from gossamer.figures.panels import Drawn, draw_panels

    out, table = finished
    (result,) = results(out)
    for entry in table:
        circuits = result.circuits[entry.measure]
        figure = draw_panels([Drawn("T", ("a", "b"), circuits, entry, ("blue", "orange"))])
        lines = figure.axes[0].get_lines()
        for line, circuit in zip(lines[:2], circuits, strict=True):
            start = 1 if circuit.units == "edges" else 0
            assert np.asarray(line.get_xdata()).tolist() == circuit.ks[start:]
            assert np.asarray(line.get_ydata()) == pytest.approx(circuit.effect[start:])
        assert sorted(np.asarray(lines[2].get_xdata()).tolist()) == sorted([entry.dense, entry.sparse])  # type: ignore[type-var]
        assert set(np.asarray(lines[2].get_ydata()).tolist()) == {0.9}


def test_models_are_named_where_they_first_stand(finished: tuple[Path, list[Multiplier]]) -> None:
    from gossamer.figures.panels import Drawn, draw_panels

    out, (entry, *_) = finished
    (result,) = results(out)
    pairs = [(("a", "b"), ("C0", "C1")), (("a", "b"), ("C0", "C1")), (("c", "d"), ("C2", "C3"))]
    panels = [Drawn("T", names, result.circuits[entry.measure], entry, colours) for names, colours in pairs]
    legends = [axes.get_legend() for axes in draw_panels(panels).axes]
    assert [legend and [text.get_text() for text in legend.get_texts()] for legend in legends] == [
        ["a", "b"],
        None,
        ["c", "d"],
    ]


def test_patterns_are_those_of_the_heads_needed(finished: tuple[Path, list[Multiplier]], pair: tuple[str, str]) -> None:
    out, _ = finished
    found = Patterns.read(out / "panels" / "induction" / "sparse" / "patterns.safetensors")
    stored = Stored.read(out / "panels" / "induction" / "sparse" / "heads_dataset")
    assert len(found.heads) == stored.k90
    assert set(found.heads) == {planted.PREVIOUS_TOKEN, planted.INDUCTION}
    assert found.heads == sorted(found.heads)
    model = gossamer.load(pair[1])
    ids = torch.tensor([model.encode(stored.prompts[0]["clean"])])
    model.hf.set_attn_implementation("eager")
    attentions = model.hf(ids, output_attentions=True).attentions
    for (layer, head), pattern in zip(found.heads, found.patterns, strict=True):
        assert pattern == pytest.approx(attentions[layer][0, head].detach().numpy(), abs=1e-3)  # kept in 16 bits


def test_one_edge_of_a_long_prompt_is_seen() -> None:
    pattern = np.zeros((150, 150))
    pattern[149, 3] = 0.7
    cells = visible_cells(pattern)
    assert cells.shape == (38, 38)
    assert cells[37, 0] == 0.7
    assert np.count_nonzero(cells) == 1
    np.testing.assert_array_equal(visible_cells(pattern[:46, :46]), pattern[:46, :46])


def test_a_finished_run_is_not_done_again(pair: tuple[str, str], finished: tuple[Path, list[Multiplier]]) -> None:
    out, table = finished
    stamp = (out / "panels/induction/dense/heads_sentence/circuit.json").stat().st_mtime_ns
    again = compare([Panel("induction", *pair)], out, prompts=12)
    assert again == table
    assert (out / "panels/induction/dense/heads_sentence/circuit.json").stat().st_mtime_ns == stamp


def test_another_request_is_refused_and_forced(pair: tuple[str, str], tmp_path: Path) -> None:
    panel = Panel("induction", *pair)
    compare([panel], tmp_path / "run", prompts=4)
    with pytest.raises(GossamerError, match=r"asked otherwise \(prompts\)"):
        compare([panel], tmp_path / "run", prompts=5)
    table = compare([panel], tmp_path / "run", prompts=5, force=True)
    assert len(Stored.read(tmp_path / "run/panels/induction/dense/heads_sentence").clean) == 5
    assert len(table) == 3


def test_a_forced_run_keeps_nothing_of_the_one_before(finished: tuple[Path, list[Multiplier]], tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    assert (out / "controls.md").exists()
    compare([Panel("induction", "bundled:induction", "bundled:induction")], out, prompts=3, controls=False, force=True)
    assert not (out / "controls.md").exists()
    assert not (out / "controls.json").exists()
    assert len(json.loads((out / "multipliers.json").read_text())) == 3


def test_another_first_token_or_type_is_another_run(
    finished: tuple[Path, list[Multiplier]], pair: tuple[str, str]
) -> None:
    for name, value in (("first_token", "none"), ("dtype", "float64")):
        with pytest.raises(GossamerError, match=rf"asked otherwise \({name}\)"):
            compare([Panel("induction", *pair)], finished[0], prompts=12, loading={name: value})


def test_a_task_file_that_changed_is_another_run(tmp_path: Path) -> None:
    model = gossamer.load("bundled:induction")
    lines = gossamer.circuit(model, gossamer.prompts("induction", model, 3)).prompt_lines().splitlines(keepends=True)
    task, out = tmp_path / "mine.jsonl", tmp_path / "run"
    panel = Panel(str(task), "bundled:induction", "bundled:induction")
    task.write_text("".join(lines[:2]))
    compare([panel], out, controls=False, sizes="few")
    task.write_text("".join(lines))
    with pytest.raises(GossamerError, match=r"asked otherwise \(text in .*mine\.jsonl\)"):
        compare([panel], out, sizes="few")


def test_a_model_that_changed_gets_no_controls(finished: tuple[Path, list[Multiplier]], tmp_path: Path) -> None:
    panel = Path(shutil.copytree(finished[0] / "panels/induction", tmp_path / "panel"))
    model = gossamer.load("bundled:induction")  # the dense one is another
    with pytest.raises(GossamerError, match="other weights"):
        check_same_model(model, panel, "dense")
    check_same_model(model, panel, "sparse")


@pytest.mark.parametrize("side", ["dense", "sparse", "tuned"])
def test_a_model_that_changed_after_its_part_was_finished_is_refused(
    pair: tuple[str, str], tmp_path: Path, side: str
) -> None:
    """Its circuits are all there, and what is told of its training must be of the same model."""
    folders = {name: tmp_path / name for name in ("dense", "sparse", "tuned")}
    for folder in folders.values():
        shutil.copytree(pair[0], folder)
    panel, out = Panel("induction", *map(str, folders.values())), tmp_path / "run"
    table = compare([panel], out, prompts=4, sizes="few")
    assert compare([panel], out, prompts=4, sizes="few") == table
    weights = folders[side] / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors, weights, metadata={"format": "pt"})  # another file with the same weights
    assert compare([panel], out, prompts=4, sizes="few") == table
    tensors["transformer.wte.weight"] *= 1.01
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(GossamerError, match=f"is of a {folders[side]} with other weights: --force"):
        compare([panel], out, prompts=4, sizes="few")
    compare([panel], out, prompts=4, sizes="few", force=True)


def test_a_fine_tuned_control_can_be_added(pair: tuple[str, str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"prompts": 4, "sizes": "few"}
    compare([Panel("induction", *pair)], tmp_path / "run", **options)
    control = tmp_path / "run/panels/induction/controls/tuned-heads/circuit.json"
    assert not control.exists()
    compare([Panel("induction", *pair, pair[1])], tmp_path / "run", **options)
    assert control.exists()
    with pytest.raises(GossamerError, match=r"asked otherwise \(panels\)"):
        compare([Panel("induction", *pair, pair[0])], tmp_path / "run", **options)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"panels": [{'])
def test_a_damaged_request_is_told_from_none(
    finished: tuple[Path, list[Multiplier]], pair: tuple[str, str], tmp_path: Path, content: str
) -> None:
    run = Path(shutil.copytree(finished[0], tmp_path / "run"))
    (run / "run.json").write_text(content)
    with pytest.raises(GossamerError, match=r"run\.json can't be read"):
        results(run)
    if content != "{}":
        with pytest.raises(GossamerError, match=r"run\.json can't be read"):
            compare([Panel("induction", *pair)], run, prompts=12)
    (run / "run.json").unlink()
    with pytest.raises(GossamerError, match=r"it has no run\.json"):
        results(run)


def test_a_task_is_asked_of_two_models_once(pair: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(GossamerError, match="induction is asked of the same models twice"):
        compare([Panel("induction", *pair)] * 2, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_fine_tuned_control_that_is_no_model_locks_nothing(pair: tuple[str, str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"prompts": 4, "sizes": "few"}
    table = compare([Panel("induction", *pair)], tmp_path / "run", **options)
    with pytest.raises(GossamerError, match="is not a model folder"):
        compare([Panel("induction", *pair, str(tmp_path / "misspelt"))], tmp_path / "run", **options)
    assert compare([Panel("induction", *pair)], tmp_path / "run", **options) == table
    # Without controls it is not asked for anything.
    compare([Panel("induction", *pair, str(tmp_path / "none"))], tmp_path / "other", controls=False, **options)


def test_a_fine_tuned_control_without_an_effect_is_known_by_its_weights(pair: tuple[str, str], tmp_path: Path) -> None:
    for name in ("silent", "another"):
        hf, tokenizer = planted.build()
        with torch.no_grad():
            for parameter in hf.transformer.h.parameters():
                parameter.mul_(0 if name == "silent" else 0.001)
        hf.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    tuned, out = tmp_path / "tuned", tmp_path / "run"
    shutil.copytree(tmp_path / "silent", tuned)
    compare([Panel("induction", *pair, str(tuned))], out, prompts=4, sizes="few")
    assert (out / "panels/induction/controls/tuned-heads/no-effect.json").exists()
    shutil.copytree(tmp_path / "another", tuned, dirs_exist_ok=True)
    with pytest.raises(GossamerError, match="with other weights"):
        compare([Panel("induction", *pair, str(tuned))], out, prompts=4, sizes="few")


def test_lost_controls_are_measured_again(
    finished: tuple[Path, list[Multiplier]], pair: tuple[str, str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    lost = out / "panels/induction/controls/random-dense-heads"
    shutil.rmtree(lost)
    compare([Panel("induction", *pair)], out, prompts=12)
    assert (lost / "circuit.json").exists()


def test_a_sparse_model_of_another_base_is_doubted(finished: tuple[Path, list[Multiplier]], tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    shares = dict.fromkeys(("kl", "top1_agreement", "edges_without_first", "edges_without_first_and_diagonal"), 0.3)
    evaluation = {"loss": 1.0, "base_loss": 1.0, "edges": 0.3, **shares}
    rows = [{"step": 0, "held_out_loss": 1.0, "edges": 0.3}]
    own = results(out)[0].circuits["heads_sentence"][0].summary["model"]["weights"]
    for weights, doubted in (("another", True), (own, False)):
        training = Training("bundled:induction", "x", 1.1, 1.0, 1, rows, evaluation, weights)
        (out / "training.json").write_text(json.dumps([asdict(training)]))
        doubts = [doubt for entry in summarise(out) for doubt in entry.doubts]
        assert any("another model" in doubt for doubt in doubts) == doubted


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("dense/heads_sentence/circuit.json", "{}"),
        ("dense/heads_sentence/circuit.json", "{"),
        ("controls/dense.json", "{"),
        ("controls/dense.json", "{}"),
        ("dense/heads_sentence/prompts.jsonl", '{"clean_metric": 1.0}'),
    ],
)
def test_a_damaged_run_is_said_in_one_line(
    finished: tuple[Path, list[Multiplier]], tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    (out / "panels/induction" / file).write_text(text)
    refused(capsys, "figures", str(out))


def test_figures_wait_for_a_run(
    finished: tuple[Path, list[Multiplier]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    with only_process(out / "lock", out):
        assert "another process" in refused(capsys, "figures", str(out))


def test_models_that_are_swapped_are_doubted_and_begin_alike(tmp_path: Path) -> None:
    """A sparse model that was post-trained with a first token of its own is compared with it on both sides."""
    folder = find_folder("bundled:gpt2-sparse")
    assert folder is not None
    sparse = shutil.copytree(folder, tmp_path / "sparse")
    config = json.loads((sparse / "config.json").read_text())
    config["gossamer"]["first_token"] = "."
    (sparse / "config.json").write_text(json.dumps(config))
    few: dict[str, Any] = {"prompts": 4, "sizes": "few", "controls": False}
    loading = {"first_token": "auto", "dtype": "auto"}
    right = compare([Panel("ioi", "bundled:gpt2", str(sparse))], tmp_path / "right", **few, loading=loading)
    assert not [doubt for doubt in right[0].doubts if "gates" in doubt]
    for side in ("dense", "sparse"):
        summary = Stored.read(tmp_path / "right" / "panels" / "ioi" / side / "heads_sentence").summary
        assert summary["model"]["first_token"] == "."
    swapped = compare([Panel("ioi", str(sparse), "bundled:gpt2")], tmp_path / "swapped", **few)
    doubts = " ".join(swapped[0].doubts)
    assert f"dense: {sparse} has gates" in doubts
    assert "sparse: bundled:gpt2 has no gates" in doubts
    panels = [Panel("ioi", "bundled:gpt2", name) for name in (str(sparse), "bundled:gpt2-sparse")]
    with pytest.raises(GossamerError, match="different first tokens"):
        compare(panels, tmp_path / "both", **few)


def test_one_prompt_is_doubted() -> None:
    model = gossamer.load("bundled:induction")
    assert "one prompt" in gossamer.circuit(model, gossamer.prompts("induction", model, 1)).warnings()[0]


def test_an_interrupted_run_goes_on(pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.comparison import jobs

    done: list[str] = []
    real = gossamer.circuit

    def failing(*args: Any, **kwargs: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(kwargs["units"])
        return real(*args, **kwargs)

    monkeypatch.setattr(jobs, "circuit", failing)
    with pytest.raises(KeyboardInterrupt):
        compare([Panel("induction", *pair)], tmp_path / "run", prompts=4, controls=False)
    done.append("interrupted")
    compare([Panel("induction", *pair)], tmp_path / "run", prompts=4, controls=False)
    assert len(done) == 4 + 3  # the three circuits that were left, and none twice


def test_a_model_that_changed_in_between_is_noticed(finished: tuple[Path, list[Multiplier]], tmp_path: Path) -> None:
    out, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    path = copy / "panels/induction/dense/heads_dataset/circuit.json"
    summary = json.loads(path.read_text())
    summary["model"]["weights"] = "another"
    path.write_text(json.dumps(summary))
    with pytest.raises(GossamerError, match="changed while"):
        results(copy)


def test_not_reached(finished: tuple[Path, list[Multiplier]]) -> None:
    out, _ = finished
    (result,) = results(out)
    dense, sparse = (stored.curve for stored in result.circuits["heads_sentence"])
    short = replace(dense, kept=dense.kept[:, :1] + 0.5 * (dense.kept - dense.kept[:, :1]))
    found = multiplier("induction", "heads_sentence", short, sparse)
    assert found.value is None
    assert found.interval[0] == math.inf
    assert multiplier_text(found) == "90% not reached (dense)"
    assert found.as_json()["multiplier"] is None


def test_a_multiplier_below_one_is_shown_as_such() -> None:
    assert [times(value) for value in (97.0, 2.24, 1.0, 1.04, 0.96, 0.6)] == [
        "97.0",
        "2.2",
        "1.0",
        "1.04",
        "0.96",
        "0.60",
    ]


def test_a_file_that_was_quantised_is_called_by_its_model() -> None:
    assert model_label("models/SmolLM2-135M-Instruct.Q4_1.gguf") == "SmolLM2-135M-Instruct"
    assert model_label("a/mistral-7b.gguf") == "mistral-7b"
    assert model_label("allenai/OLMo-7B-hf") == "OLMo-7B"


def test_folder_names_are_safe() -> None:
    panels = [Panel("../../evil $x.jsonl", "a", "b"), Panel("ioi", "a", "b"), Panel("ioi", "c", "d")]
    assert folders(panels) == ["evil-x", "ioi", "ioi-2"]
    assert folders([*panels, Panel("ioi-2.jsonl", "a", "b")])[-1] == "ioi-2-2"


def test_what_is_refused_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    command = ["compare", "bundled:induction", str(tmp_path / "missing"), "--task", "induction", "--out", str(out)]
    assert "not a model folder" in refused(capsys, *command)
    assert not out.parent.exists()


def test_controls_can_be_added_later(pair: tuple[str, str], tmp_path: Path) -> None:
    panel = Panel("induction", *pair)
    compare([panel], tmp_path / "run", prompts=4, controls=False)
    assert not (tmp_path / "run" / "controls.md").exists()
    stamp = (tmp_path / "run/panels/induction/dense/heads_sentence/circuit.json").stat().st_mtime_ns
    compare([panel], tmp_path / "run", prompts=4)
    assert (tmp_path / "run" / "controls.md").exists()
    assert (tmp_path / "run/panels/induction/dense/heads_sentence/circuit.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("text", ["ioi", "ioi=gpt2", "=a,b", "ioi=a,b,c,d", "ioi=,b"])
def test_a_bad_panel_is_refused(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "TASK=DENSE,SPARSE" in refused(capsys, "reproduce", "--panel", text, "--out", str(tmp_path / "x"))


def test_other_files_are_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    command = ["compare", "bundled:induction", "bundled:induction", "--task", "induction", "--out", str(tmp_path)]
    assert "other files (thesis.tex)" in refused(capsys, *command, "--force")
    assert (tmp_path / "thesis.tex").exists()


def test_no_run_no_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no run of compare or reproduce" in refused(capsys, "figures", str(tmp_path / "nothing"))
