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
    compare([Panel("induction", "bundled:induction", "bundled:induction")], run, prompts=6)
    log = [{"step": step, "held_out_loss": 1.0, "edges": 0.5 / (step + 1)} for step in range(40)]
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    text = f"""Before.
<!-- multipliers {run} -->
old
<!-- end -->
<!-- controls {run} -->
<!-- end -->
<!-- trace {trained} -->
<!-- end -->
<!-- training {tmp_path}/none -->
as it was
<!-- end -->
"""
    filled = script.fill(text)
    assert "old" not in filled
    assert "| induction | heads, sentence | 2 (2 to 2) | 2 (2 to 2) | **1.00x** (1.00 to 1.00) |" in filled
    assert "### Heads that explain 90%" in filled
    assert "| 0 | 1.0000 | 50.000% |" in filled
    assert "| 39 | 1.0000 | 1.250% |" in filled
    assert "as it was" in filled
    assert "none: no such run" in capsys.readouterr().out
    assert script.fill(filled) == filled


def test_every_place_for_a_table_can_be_filled(script: ModuleType) -> None:
    for page in PAGES.glob("*.md"):
        for kind in script.PLACE.findall(page.read_text(encoding="utf-8")):
            assert kind[1] in script.KINDS, f"{page.name}: {kind[1]}"
