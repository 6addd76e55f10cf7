from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gossamer
from gossamer.bundled import text, train
from gossamer.bundled.tokenizer import train_tokenizer
from gossamer.errors import GossamerError
from gossamer.tasks.pair import choose
from gossamer.tasks.words import CENTURIES, NAMES, PLACES
from tests.test_cli import refused


@pytest.fixture(scope="module", params=["gpt2", "olmo"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_names_places_and_years_are_single_tokens(name: str) -> None:
    trained = train_tokenizer(name)
    words = [f" {word}" for word in (*NAMES, *PLACES)]
    if name == "gpt2":
        words += [f"{year:02}" for year in range(100)] + [f" {century}" for century in CENTURIES]
    assert {word for word in words if len(trained(word).input_ids) != 1} == set()
    said = "From the year 1734 to the year 1799 naïve 日本 {}\n"
    assert trained.decode(trained(said).input_ids) == said


def small(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same training with fewer and smaller blocks."""
    monkeypatch.setitem(train.RECIPES, name, replace(train.RECIPES[name], batch=2))
    monkeypatch.setattr(train, "EVERY", 2)
    monkeypatch.setattr(train, "JUDGED", 4)


def test_an_interrupted_training_goes_on_as_if_nothing_had_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, name)
    straight = train.train(name, tmp_path / "straight", steps=5)

    def stop(step: int, _steps: int, _loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.train(name, tmp_path / "stopped", steps=5, report=stop)
    with pytest.raises(GossamerError, match="other settings"):
        train.train(name, tmp_path / "stopped", steps=6)
    resumed = train.train(name, tmp_path / "stopped", steps=5)
    assert resumed["held_out_loss"] == straight["held_out_loss"]
    weights = [load_file(tmp_path / run / "model.safetensors") for run in ("straight", "stopped")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert f"bundled:{name}" in (tmp_path / "stopped" / "README.md").read_text()
    assert json.loads((tmp_path / "stopped" / "training.json").read_text())["steps"] == 5


def test_prompts_to_judge_on_have_unseen_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        found = choose(*args, **kwargs)
        asked.extend(found.pairs)
        return found

    monkeypatch.setattr(train, "choose", spy)
    hf = train.gpt2(64)
    train.judge(gossamer.wrap(hf, train_tokenizer("gpt2"), name="untrained"), "ioi", n=30)
    assert len(asked) == 30
    assert all(text.unseen(*pair.pair.words[:2]) for pair in asked)


def test_a_folder_with_a_model_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "holds a model" in refused(capsys, "train-bundled", "gpt2", "--out", str(tmp_path))
    assert "at least 1" in refused(capsys, "train-bundled", "gpt2", "--out", str(tmp_path / "x"), "--steps", "0")
