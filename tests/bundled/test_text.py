from __future__ import annotations

import itertools
import re

import pytest

from gossamer.bundled import text
from gossamer.bundled.wordings import TRANSFERS
from gossamer.tasks import greater_than, ioi
from gossamer.tasks.words import DISTRACTORS, NAMES, OBJECTS, PLACES

SOME = 20_000


@pytest.fixture(scope="module", params=["gpt2", "olmo"])
def sample(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    return request.param, list(itertools.islice(text.documents(request.param), SOME))


def test_the_stream_is_the_same_wherever_it_begins(sample: tuple[str, list[str]]) -> None:
    mix, documents = sample
    assert list(itertools.islice(text.documents(mix, 100), 20)) == documents[100:120]


def test_no_wording_of_a_task_is_in_it(sample: tuple[str, list[str]]) -> None:
    _, documents = sample
    everything = "\n".join(documents)
    name, place, thing = (f"(?:{'|'.join(words)})" for words in (NAMES, PLACES, OBJECTS))
    for template in ioi.TEMPLATES:
        pattern = re.escape(template)
        for slot, words in (("A", name), ("B", name), ("S", name), ("place", place), ("object", thing)):
            pattern = pattern.replace(re.escape("{" + slot + "}"), words)
        assert not re.search(pattern, everything), template
    year = re.escape(greater_than.TEXT)
    for slot, words in (("event", r"\w+"), ("century", r"\d\d"), ("year", r"\d\d")):
        year = year.replace(re.escape("{" + slot + "}"), words)
    assert not re.search(year, everything)
    # The docstring task: self, a summary of three words, descriptions of two.
    for found in re.finditer(r'def \w+\(self, [^)]*\):\n    """(.*)\n\n((?:    :param .*\n)+)', everything):
        lengths = {len(line.split(": ", 1)[1].split()) for line in found[2].splitlines()}
        assert (len(found[1].split()), lengths) != (3, {2})


def test_no_distractor_and_no_unseen_pair_is_in_it(sample: tuple[str, list[str]]) -> None:
    _, documents = sample
    everything = "\n".join(documents)
    for sentence in DISTRACTORS:
        assert sentence not in everything
    pairs = 0
    for document in documents:
        named = sorted(set(re.findall(r"\w+", document)) & set(NAMES))
        for pair in itertools.combinations(named, 2):
            pairs += 1
            assert not text.unseen(*pair), document
    assert pairs > 1000
    assert 0.05 < sum(text.unseen(a, b) for a, b in itertools.combinations(NAMES, 2)) / (117 * 116 / 2) < 0.15


def test_most_of_it_is_something_else(sample: tuple[str, list[str]]) -> None:
    mix, documents = sample
    marks = {"gpt2": r"\d\d\d\d.*\d\d\d\d", "olmo": "[:@]param "}[mix]
    name = f"({'|'.join(NAMES)})"
    transfer = "|".join(re.escape(t).replace(re.escape("{S}"), name) for t in TRANSFERS)
    gift = transfer.replace(re.escape("{object}"), r"\w+")
    share = sum(bool(re.search(f"{marks}|(?:{gift}) {name}", document)) for document in documents) / len(documents)
    assert 0.2 < share < 0.4
