"""What the page holds is what the run's files say."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer
from gossamer.comparison import explorer
from gossamer.comparison.run import Panel, compare, results
from gossamer.comparison.stored import Stored
from gossamer.errors import GossamerError
from gossamer.report.data import MOST_EDGES, collect
from gossamer.report.page import as_json, render, write_report
from tests.report.conftest import HOSTILE
from tests.test_cli import call, refused


def test_curves_rankings_and_multipliers(run: Path) -> None:
    data = collect(run).data
    written = json.loads((run / "multipliers.json").read_text())
    for number, (panel, result) in enumerate(zip(data["panels"], results(run), strict=True)):
        for measure, pair in result.circuits.items():
            for side, stored in zip(("dense", "sparse"), pair, strict=True):
                curve = panel["curves"][measure][side]
                assert curve["k"] == stored.ks
                assert curve["effect"] == pytest.approx(stored.effect, abs=1e-5)
                assert curve["k90"] == stored.k90
                assert all(low <= high for low, high in zip(curve["low"], curve["high"]))
        assert [panel["multipliers"][row["measure"]] for row in written[number::2]] == written[number::2]
        order = result.circuits["heads_dataset"][0].head_order().tolist()
        assert [panel["heads"]["dense"]["rank"][head] for head in order] == list(range(1, len(order) + 1))
    assert [figure["name"] for figure in data["figures"]][:3] == ["heads_sentence", "edges_sentence", "heads_dataset"]
    assert data["settings"]["prompts"] == 6
    assert "torch" in data["versions"]


def test_patterns_and_edges_are_those_of_the_files(run: Path) -> None:
    report = collect(run)
    result = results(run)[0]
    stored = result.circuits["edges_sentence"][0]
    ranking = {name: tensor.numpy() for name, tensor in stored.scores().items()}
    explored = explorer.read(result.folder / "dense" / explorer.FILE)
    content = report.files["induction/dense"]
    prompts = report.data["panels"][0]["explorer"]["prompts"]
    assert len(prompts) == len(explored) == 6
    for row, (prompt, one) in enumerate(zip(prompts, explored, strict=True)):
        own = prompt["sides"]["dense"]
        assert prompt["clean"] == one.clean
        assert "".join(one.clean) == stored.prompts[row]["clean"]
        assert bytes(one.patterns) == content[own["patterns"] : own["patterns"] + one.patterns.size]
        index = np.frombuffer(content, "<i2", 4 * own["edges"], own["index"]).reshape(4, -1)
        assert index.T.tolist() == ranking["index"][row, : own["edges"]].tolist()
        scores = np.frombuffer(content, "<f4", own["edges"], own["scores"])
        assert scores == pytest.approx(ranking["scores"][row, : own["edges"]], rel=1e-3)
        effect = (stored.kept[row] - stored.kept[row, 0]) / (stored.clean[row] - stored.kept[row, 0])
        assert own["effect"] == pytest.approx(effect, abs=1e-5)
        assert own["edges"] <= MOST_EDGES


def test_the_patterns_are_the_models_own(run: Path) -> None:
    (one, *_) = explorer.read(run / "panels" / "induction" / "dense" / explorer.FILE)
    model = gossamer.load("bundled:induction")
    ids = torch.tensor([model.encode("".join(one.clean))])
    model.hf.set_attn_implementation("eager")
    with torch.no_grad():
        out: Any = model.hf(ids, output_attentions=True)
    rows, columns = np.tril_indices(ids.shape[1])
    for layer, attention in enumerate(out.attentions):
        weights = (one.patterns[layer] / 255.0) ** 2
        assert weights == pytest.approx(attention[0].numpy()[:, rows, columns], abs=0.004)
    best = out.logits[0, -1].softmax(-1).topk(explorer.PREDICTIONS)
    words = [f" {model.tokenizer.decode([token])}" for token in best.indices.tolist()]
    assert [token for token, _, _ in one.after_clean] == words
    assert [share for _, share, _ in one.after_clean] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert one.after_clean[0][2] == "right"


def test_an_open_edge_never_looks_shut() -> None:
    assert explorer.levels(np.array([0.0, 1e-9, 0.25, 1.0])).tolist() == [0, 1, 128, 255]


def test_as_many_prompts_as_fit(monkeypatch: pytest.MonkeyPatch, planted_model: Any) -> None:
    prompts = gossamer.prompts("induction", planted_model, 12)
    assert len(explorer.explore(planted_model, prompts)) == explorer.MOST_PROMPTS
    n = len(prompts.pairs[0])
    monkeypatch.setattr(explorer, "BUDGET", 2 * 8 * n * (n + 1) // 2)
    assert len(explorer.explore(planted_model, prompts)) == 2
    monkeypatch.setattr(explorer, "BUDGET", 0)
    assert len(explorer.explore(planted_model, prompts)) == 1


def test_what_is_missing_is_added(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    panel = Panel("induction", "bundled:induction", "bundled:induction")
    compare([panel], out, prompts=3, controls=False)
    path = out / "panels" / "induction" / "sparse" / explorer.FILE
    whole = path.read_bytes()
    path.unlink()
    write_report(out)
    assert "missing" in collect(out).data["panels"][0]["explorer"]
    compare([panel], out, prompts=3, controls=False)
    assert path.read_bytes() == whole


def test_the_page_is_one_file_that_nothing_can_break_out_of(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    assert len(text) < 2_000_000
    assert HOSTILE not in text
    opening, closing = len(re.findall(r"<script[ >]", text)), text.count("</script>")
    assert opening == closing == 3 + len(collect(run).files)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert HOSTILE in json.dumps(json.loads(data))
    packed = dict(re.findall(r'<script type="application/octet-stream" data-file="([^"]*)">([^<]*)</script>', text))
    for name, content in collect(run).files.items():
        assert zlib.decompress(base64.b64decode(packed[name])) == content


def test_json_in_a_script() -> None:
    value = {"prompt": "</script><!--<script>\u2028\ud800{{code}}"}
    assert "<" not in as_json(value)
    assert json.loads(as_json(value)) == value
    as_json(value).encode()


def test_data_that_looks_like_the_template_is_left_alone(run: Path) -> None:
    report = collect(run)
    report.data["name"] = "{{code}} {{data}}"
    assert '"name":"{{code}} {{data}}"' in render(report)


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "report.html").unlink()
    assert call("report", str(copy)) == 0
    assert "report.html" in capsys.readouterr().err
    shown: list[str] = []

    def browse(address: str) -> bool:
        shown.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    (copy / "report.html").unlink()
    assert call("open", str(copy)) == 0
    assert shown == [(copy / "report.html").as_uri()]
    assert (copy / "report.html").exists()
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    assert "no browser was found" in refused(capsys, "open", str(copy))


@pytest.mark.parametrize("command", ["report", "open"])
def test_no_run_no_report(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run of compare or reproduce" in refused(capsys, command, str(tmp_path))


def test_a_run_that_is_not_finished(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "multipliers.json").unlink()
    assert "not finished" in refused(capsys, "report", str(copy))
    (copy / "panels" / "induction" / "dense" / explorer.FILE).write_bytes(b"broken")
    with pytest.raises(GossamerError, match=r"explorer.safetensors can't be read"):
        explorer.read(copy / "panels" / "induction" / "dense" / explorer.FILE)


@pytest.mark.parametrize("wrong", ["{}", "null", "[]", "[1, 2, 3]"])
def test_multipliers_of_another_run(wrong: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "multipliers.json").write_text(wrong)
    assert "not that of this run" in refused(capsys, "report", str(copy))


def test_a_prompt_may_hold_any_line_separator(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run / "panels" / "induction" / "dense" / "heads_sentence", copy)
    before = Stored.read(copy).prompts
    changed = [{**prompt, "clean": f"{prompt['clean']}\u2028\u0085 x"} for prompt in before]
    text = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in changed)
    (copy / "prompts.jsonl").write_text(text, encoding="utf-8")
    assert Stored.read(copy).prompts == changed
