import dataclasses
import shlex

import pytest

from gossamer.cli.training import sparsify
from gossamer.training.folder import command
from gossamer.training.settings import Settings


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(distill=True, margin=0.02, lora=4, merge=True, bias=-1.5, learn_bias=False, schedule="cosine"),
        Settings(distill=False, penalty=False, renormalise=True, lr=5e-4, block=64, slack_ends=0.9, aim=1.0),
    ],
)
def test_the_command_of_a_card_gives_its_settings(settings: Settings) -> None:
    loading = {"column": "body", "dtype": "bfloat16", "first_token": "none"}
    words = shlex.split(command("a model", "text; rm.txt", dataclasses.asdict(settings), loading))
    assert words[:2] == ["gossamer", "sparsify"]
    parsed = sparsify.make_context("sparsify", words[2:]).params
    assert (parsed["model"], parsed["data"]) == ("a model", "text; rm.txt")
    assert {name: parsed[name] for name in loading} == loading
    assert {name: parsed[name] for name in dataclasses.asdict(settings)} == dataclasses.asdict(settings)
