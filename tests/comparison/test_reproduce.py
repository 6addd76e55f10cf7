"""The whole chain on a tiny budget: post-train both bundled models, find circuits, draw figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.bundled import shipped
from gossamer.comparison.reproduce import TASKS, reproduce
from tests.test_cli import refused

pytestmark = pytest.mark.skipif(not shipped(), reason="the trained models are not in this installation")

HERE = {task: name for task, name in TASKS.items() if name in shipped()}
GRIDS = [f"grid_{task}" for task in HERE]
TITLES = {"gpt2": ("Greater Than", "IOI", "Sparse GPT-2"), "olmo": ("Docstring", "IOI Long", "Sparse OLMo")}


def test_the_whole_chain(tmp_path: Path) -> None:
    out = tmp_path / "run"
    tiny = {"steps": 4, "every": 2, "batch": 2, "held_out": 4, "lr": 1e-4}
    table = reproduce(out, prompts=4, sparsify_settings=tiny)
    assert [entry.task for entry in table] == [*HERE] * 3
    assert all(entry.dense is not None for entry in table)
    for name in ("heads_sentence", "edges_sentence", "heads_dataset", *GRIDS, "training"):
        for kind in ("png", "pdf", "svg"):
            assert (out / "figures" / f"{name}.{kind}").stat().st_size > 1000
    trainings = json.loads((out / "training.json").read_text())
    assert [training["base"] for training in trainings] == [f"bundled:{name}" for name in shipped()]
    assert all(training["evaluation"]["loss"] <= training["tau"] + 1e-4 for training in trainings)
    svg = (out / "figures" / "heads_sentence.svg").read_text()
    for name in shipped():
        assert all(word in svg for word in TITLES[name])


def test_quick_is_for_the_bundled_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "--quick", "--panel", "ioi=a,b", "--out", str(tmp_path / "x")]
    assert "leave out" in refused(capsys, *command)
