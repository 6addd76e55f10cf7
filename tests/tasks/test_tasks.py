from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import gossamer
from gossamer import GossamerError, Model
from gossamer.tasks import TASKS, ioi
from gossamer.tasks.metric import LOGIT, PROBABILITY, Metric
from gossamer.tasks.pair import EncodedPair, Pair, Unfit, encode
from gossamer.tasks.words import DISTRACTORS
from tests.conftest import shared, wrapped
from tests.families import random_model

TOKENIZERS = ["tokenizers/gpt2", "tokenizers/olmo", "models/stories15M"]


@pytest.fixture(params=TOKENIZERS)
def speaker(request: pytest.FixtureRequest) -> Model:
    """A model that has a real tokenizer; its weights play no part here."""
    tokenizer = AutoTokenizer.from_pretrained(shared(request.param))
    hf = random_model("llama", vocabulary=len(tokenizer), max_position_embeddings=256)
    return gossamer.wrap(hf, tokenizer)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_fit_real_tokenizers(speaker: Model, task: str) -> None:
    prompts = gossamer.prompts(task, speaker, 60)
    assert len({pair.pair for pair in prompts.pairs}) == 60
    for pair in prompts.pairs:
        assert len(pair.clean) == len(pair.corrupted)
        assert pair.clean[-1] == pair.corrupted[-1]
        assert pair.clean != pair.corrupted
        assert len(pair.answers) == len(pair.pair.answers)
        assert not set(pair.answers) & set(pair.wrong)
        if speaker.first_token is not None:
            assert pair.clean[0] == speaker.first_token


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_seeded(speaker: Model, task: str) -> None:
    first, again = (gossamer.prompts(task, speaker, 10, seed=3) for _ in range(2))
    assert first == again
    assert first.pairs != gossamer.prompts(task, speaker, 10, seed=4).pairs
    assert first.pairs == gossamer.prompts(task, speaker, 20, seed=3).pairs[:10]


def test_ioi_has_many_templates_in_both_orders(speaker: Model) -> None:
    assert len(ioi.TEMPLATES) >= 15
    prompts = gossamer.prompts("ioi", speaker, 600)
    templates = {pair.pair.template for pair in prompts.pairs}
    assert templates == {f"{i + 1}-{kind}" for i in range(len(ioi.TEMPLATES)) for kind in ("ABBA", "BABA")}
    for pair in prompts.pairs:
        indirect, subject = pair.answers[0], pair.wrong[0]
        assert (pair.clean.count(indirect), pair.clean.count(subject)) == (1, 2)
        assert (pair.corrupted.count(indirect), pair.corrupted.count(subject)) == (1, 1)
        assert sum(a != b for a, b in zip(pair.clean, pair.corrupted, strict=True)) == 1
        assert (pair.clean.index(indirect) < pair.clean.index(subject)) == pair.pair.template.endswith("ABBA")


def test_ioi_long_keeps_its_distance(speaker: Model) -> None:
    distances = []
    for pair in gossamer.prompts("ioi-long", speaker, 100).pairs:
        count = 0
        text = pair.pair.clean
        while start := next((s for s in DISTRACTORS if text.startswith(s)), None):
            text = text.removeprefix(start).removeprefix(" ")
            count += 1
        before = pair.pair.clean[: len(pair.pair.clean) - len(text) - 1]
        assert count >= 1
        distances.append(len(speaker.encode(before)))
    assert min(distances) >= 60
    assert max(distances) <= 120
    assert len(set(distances)) > 20


def test_greater_than_asks_for_years_or_for_digits(speaker: Model) -> None:
    prompts = gossamer.prompts("greater-than", speaker, 50)
    digits = speaker.tokenizer.tokenize("1734")[-1] == "4"
    centuries = set()
    for pair in prompts.pairs:
        words = pair.pair.clean.split()
        year = words[words.index("to") - 1]
        centuries.add(year[:2])
        assert pair.pair.clean.endswith(f"to the year {year[:2]}")
        assert f" {year[:2]}01 " in pair.pair.corrupted
        if digits:
            assert year[3] == "9"  # so that a year is later exactly if its first digit is higher
            assert pair.pair.answers == tuple(str(d) for d in range(int(year[2]) + 1, 10))
        else:
            assert pair.pair.answers == tuple(f"{y:02}" for y in range(int(year[2:]) + 1, 100))
        assert len(pair.answers) + len(pair.wrong) == (10 if digits else 100)
        decoded = [speaker.tokenizer.decode([token]) for token in pair.answers]
        assert decoded == list(pair.pair.answers)
    assert len(centuries) >= 5
    assert len({pair.pair.clean.split()[1] for pair in prompts.pairs}) >= 20


def test_docstring_asks_for_the_next_argument(speaker: Model) -> None:
    for pair in gossamer.prompts("docstring", speaker, 50).pairs:
        signature = pair.pair.clean.split("(self, ")[1].split(")")[0].split(", ")
        documented = [line.split()[1].rstrip(":") for line in pair.pair.clean.split("\n")[3:-1]]
        assert documented == signature[: len(documented)]
        assert pair.pair.answers == (" " + signature[len(documented)],)
        assert set(pair.pair.wrong) == {" " + name for name in signature} - set(pair.pair.answers)


@pytest.mark.parametrize("task", ["ioi", "greater-than", "docstring", "induction"])
def test_prompts_of_the_same_positions(speaker: Model, task: str) -> None:
    assert not gossamer.prompts(task, speaker, 30).shared_positions
    assert gossamer.prompts(task, speaker, 30, same_positions=True).shared_positions


def test_prompts_that_never_share_positions(speaker: Model) -> None:
    with pytest.raises(GossamerError, match="hardly ever share their positions"):
        gossamer.prompts("ioi-long", speaker, 30, same_positions=True)


def test_what_does_not_fit_is_counted_and_too_few_is_an_error() -> None:
    model = wrapped("llama")  # speaks only the words of the induction task; names and years are unknown to it
    with pytest.raises(GossamerError, match=r"only 0 of the 5 prompts asked for ioi .* identical prompts"):
        gossamer.prompts("ioi", model, 5)
    with pytest.raises(GossamerError, match="0 prompts asked for"):
        gossamer.prompts("induction", model, 0)
    with pytest.raises(GossamerError, match="unknown task 'iou'"):
        gossamer.prompts("iou", model, 5)


def test_dropped_prompts_are_counted(speaker: Model) -> None:
    prompts = gossamer.prompts("ioi", speaker, 300)
    assert prompts.dropped
    assert set(prompts.dropped) <= {"word of several tokens", "prompts of unequal length", "answer of several tokens"}


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (Pair("The apple", "The apple river", (" tiger",), (" cloud",)), "prompts of unequal length"),
        (Pair("The apple", "The river", (" tiger",), (" cloud",)), "different last tokens"),
        (Pair("The apple", "The apple", (" tiger",), (" cloud",)), "identical prompts"),
        (Pair("apple river", "cloud river", (" tiger cloud",), (" cloud",)), "answer of several tokens"),
        (Pair("apple river", "cloud river", (" tiger",), (" tiger",)), "answer both right and wrong"),
        (Pair("apple river", "cloud river", (" Mary",), (" tiger",)), "answer unknown to the tokenizer"),
        (Pair("apple " * 80, "cloud " + "apple " * 79, (" tiger",), (" cloud",)), "longer than the context"),
        (Pair(" ", "  ", (" tiger",), (" cloud",)), "empty prompt"),
    ],
)
def test_what_does_not_fit(pair: Pair, reason: str) -> None:
    with pytest.raises(Unfit) as unfit:
        encode(pair, wrapped("llama"))
    assert unfit.value.reason == reason


def write(path: Path, *lines: object) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


GOOD = {
    "clean": "The words: apple river cloud apple",
    "corrupted": "The words: stone river cloud apple",
    "answers": [" river"],
    "wrong": [" cloud"],
}


def test_a_jsonl_task(tmp_path: Path) -> None:
    model = wrapped("llama")
    path = write(tmp_path / "mine.jsonl", GOOD, "", GOOD | {"answers": [" cloud", " river"], "wrong": [" stone"]})
    prompts = gossamer.prompts(path, model, None)
    assert (prompts.task, len(prompts)) == ("mine.jsonl", 2)
    assert [len(pair.answers) for pair in prompts.pairs] == [1, 2]
    assert len(gossamer.prompts(path, model, 1)) == 1
    with pytest.raises(GossamerError, match=r"3 prompts asked for, .* holds 2"):
        gossamer.prompts(path, model, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 17: "),
        ('["a"]', "line 17: expected a JSON object"),
        (GOOD | {"clean": 3}, "line 17: 'clean' must be a text, got 3"),
        (GOOD | {"answers": []}, "line 17: 'answers' must be a list of one or more texts"),
        (GOOD | {"wrong": "x"}, "line 17: 'wrong' must be a list"),
        (GOOD | {"template": 3}, "line 17: 'template' must be a text"),
        (GOOD | {"metric": "joy"}, "line 17: 'metric' must be one of"),
        (GOOD | {"answers": [" river", " river"]}, "line 17: 'answers' names an answer twice"),
        (GOOD | {"clean": "\ud800"}, "line 17: "),
        ("[" * 200_000, "line 17: "),
        (GOOD | {"metric": "probability difference"}, "several metrics"),
        (GOOD | {"clean": "The words: apple"}, "line 17: the clean prompt has 3 tokens and the corrupted one 6"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "mine.jsonl", *[GOOD] * 16, line)
    with pytest.raises(GossamerError, match=message):
        gossamer.prompts(path, wrapped("llama"), None)


def test_unusual_but_good_files(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, and a line separator inside a text."""
    path = tmp_path / "mine.jsonl"
    odd = json.dumps(GOOD | {"template": "a\u2028b\u0085c"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{odd}\r\n{json.dumps(GOOD)}\r\n".encode())
    assert len(gossamer.prompts(str(path), wrapped("llama"), None)) == 2


def test_an_empty_or_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GossamerError, match="is empty"):
        gossamer.prompts(write(tmp_path / "empty.jsonl"), wrapped("llama"), None)
    with pytest.raises(GossamerError, match="could not read"):
        gossamer.prompts(str(tmp_path / "missing.jsonl"), wrapped("llama"), None)


def test_the_metrics() -> None:
    pair = Pair("a", "b", ("x", "y"), ("z",))
    rows = [EncodedPair(pair, (0,), (1,), (2, 3), (4,)), EncodedPair(pair, (0,), (1,), (0,), (1,))]
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    difference = Metric.of(LOGIT, rows, torch.device("cpu"))
    assert difference.read_tokens is not None
    values = difference.values(logits.gather(1, difference.read_tokens))
    assert values[0].item() == pytest.approx((logits[0, 2] + logits[0, 3]).item() / 2 - logits[0, 4].item(), abs=1e-6)
    assert values[1].item() == pytest.approx((logits[1, 0] - logits[1, 1]).item(), abs=1e-6)
    correct = difference.correct(logits.gather(1, difference.read_tokens))
    assert correct[0].item() == (min(logits[0, 2], logits[0, 3]) > logits[0, 4]).item()
    probability = Metric.of(PROBABILITY, rows, torch.device("cpu"))
    assert probability.read_tokens is None
    p = logits.softmax(-1)
    assert probability.values(logits)[0].item() == pytest.approx((p[0, 2] + p[0, 3] - p[0, 4]).item(), abs=1e-6)
