"""A run with two tasks, one of them hostile in all its names and words, and its page in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import gossamer
from gossamer.bundled import planted
from gossamer.comparison.run import Panel, compare

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "</script><img/src=x/onerror=window.harmed=1>"  # without spaces: it is one word, and one token


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    model = folder / "<img src=x onerror=window.harmed=2>"
    prompts = gossamer.prompts("induction", gossamer.load("bundled:induction"), 6)
    answer = prompts.pairs[0].pair.answers[0].strip()
    save_with_word(model, answer, HOSTILE)

    def spelt(text: str) -> str:
        return " ".join(HOSTILE if word == answer else word for word in text.split(" "))

    lines = []
    for pair in (encoded.pair for encoded in prompts.pairs):
        texts = {"clean": spelt(pair.clean), "corrupted": spelt(pair.corrupted)}
        sets = {"answers": [spelt(a) for a in pair.answers], "wrong": [spelt(a) for a in pair.wrong]}
        lines.append(json.dumps({**texts, **sets}))
    task = folder / "<b>evil&.jsonl"
    task.write_text("\n".join(lines) + "\n")
    panels = [Panel("induction", "bundled:induction", "bundled:induction"), Panel(str(task), str(model), str(model))]
    compare(panels, folder / "run", prompts=6)
    return folder / "run"


def save_with_word(folder: Path, word: str, spelling: str) -> None:
    """The planted model with one of its words spelt in another way."""
    hf, _ = planted.build()
    words = {spelling if other == word else other: i for i, other in enumerate(planted.VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    hf.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no browser: install chromium to test the report in it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def show(run: Path, browser: Any) -> Iterator[Open]:
    """Open the page at a fragment. Whatever the page complains of or asks the network for is an error at the end."""
    complaints: list[str] = []
    pages = []

    def opened(fragment: str = "", *, of: Path = run, width: int = 1440, height: int = 900, **context: Any) -> Any:
        page = browser.new_context(viewport={"width": width, "height": height}, **context).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda asked: complaints.extend([asked.url] * (not asked.url.startswith(("file:", "blob:"))))
        )
        page.goto((of / "report.html").as_uri() + fragment)
        settled(page)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert complaints == []


def settled(page: Any) -> None:
    """Wait until what is shown is what the state says."""
    now = json.dumps(page.evaluate("fragment()"))
    page.locator(f"html[data-ready={now}]").wait_for(state="attached")
