"""The tables in the pages of docs/ are made from runs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from gossamer.comparison.run import Panel, compare

PAGES = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", PAGES / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_filled_in_and_what_is_missing_stays(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    compare([Panel("induction", *["bundled:induction"] * 3)], run, prompts=6, every=True)
    log = [{"step": step, "held_out_loss": 1.0, "edges": 0.5 / (step + 1)} for step in range(40)]
    trained = tmp_path / "trained"
    for folder in (trained, tmp_path / "begun"):
        folder.mkdir()
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    (trained / "sparsify.json").write_text("{}")
    text = f"""Before.
<!-- tasks {run} -->
<!-- end -->
<!-- multipliers {run} -->
old
<!-- end -->
<!-- controls {run} -->
<!-- end -->
<!-- choices {run} -->
<!-- end -->
<!-- trace {trained} -->
<!-- end -->
<!-- trace {tmp_path}/begun -->
begun
<!-- end -->
<!-- training {tmp_path}/none -->
as it was
<!-- end -->
<!-- tasks {tmp_path}/none -->
<!-- end -->
"""
    filled = script.fill(text)
    assert "old" not in filled
    assert "| task | units, ranking | dense k90 | fine-tuned k90 | sparse k90 | multiplier |" in filled
    assert "| induction | heads, sentence |" + " 2 (2 to 2) |" * 3 + " **1.00x** (1.00 to 1.00) |" in filled
    assert "| induction | heads, dataset | 2 (2 to 2) | - | 2 (2 to 2) | **1.00x** (1.00 to 1.00) |" in filled
    effect = json.loads((run / "panels/induction/dense/heads_sentence/circuit.json").read_text())["effect"]
    assert f"| induction | 100% | 100% | {effect:.3g} ± " in filled
    assert "### Heads that explain 90%" in filled
    assert "| heads, dataset, exact, signed | 1.00 (1.00 to 1.00) |" in filled
    assert "| induction | sparse | zero | ig |" in filled
    assert "| 0 | 1.0000 | 50.000% |" in filled
    assert "| 39 | 1.0000 | 1.250% |" in filled
    assert "as it was" in filled
    assert f"<!-- trace {tmp_path}/begun -->\nbegun\n" in filled
    out = capsys.readouterr().out
    assert f"the training of {tmp_path}/none stays as it is: " in out
    assert f"the tasks of {tmp_path}/none stays as it is: {tmp_path}/none holds no run" in out
    assert script.fill(filled) == filled


def test_every_place_for_a_table_can_be_filled(script: ModuleType) -> None:
    for page in PAGES.glob("*.md"):
        for kind in script.PLACE.findall(page.read_text(encoding="utf-8")):
            assert kind[1] in script.KINDS, f"{page.name}: {kind[1]}"


def test_multipliers_stand_beside_the_papers(tmp_path: Path, script: ModuleType) -> None:
    row = {"task": "ioi", "measure": "edges_sentence", "multiplier": 3.0, "multiplier_interval": [2.0, None]}
    for name, rows in {"one": [row], "other": [{**row, "multiplier": None}]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "multipliers.json").write_text(json.dumps(rows))
    filled = script.fill(f"<!-- paper {tmp_path}/one,{tmp_path}/other -->\n<!-- end -->")
    assert "| units, ranking | task | paper | one | other |" in filled
    assert "| edges, sentence | ioi | 42.8x | **3.00x** (2.00 to not reached) | - |" in filled
    assert "| heads, dataset | greater-than | 0.6x |  |  |" in filled


def test_figures_are_copied(tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.png").write_bytes(b"new")
    for name in ("own.png", "other.png"):
        (tmp_path / name).write_bytes(b"old")
    text = "".join(
        f"<!-- figure: {tmp_path}/{made} -->\n![what it shows]({shown})\n"
        for made, shown in (("run.png", "own.png"), ("none.png", "other.png"))
    )
    script.copy_figures(text, tmp_path)
    assert (tmp_path / "own.png").read_bytes() == b"new"
    assert (tmp_path / "other.png").read_bytes() == b"old"
    assert "none.png: no such file, other.png stays as it is" in capsys.readouterr().out
