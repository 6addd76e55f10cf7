"""Induction: a word that came before is followed by what followed it then."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gossamer.models import Model
from gossamer.tasks.pair import Pair
from gossamer.tasks.words import COPYABLE

METRIC = "logit difference"

N_WORDS = 8


def candidates(rng: Random, model: Model) -> Iterator[Pair]:
    """Eight different words, then one of them again. Right: the word after it; wrong: the mean of the others.
    Corrupted: its first mention is a ninth word, so that the repeated word has no past."""
    while True:
        *words, stranger = rng.sample(COPYABLE, N_WORDS + 1)
        at = rng.randrange(1, N_WORDS - 1)  # not the first word: many models attend to it whatever it is
        changed = [*words[:at], stranger, *words[at + 1 :]]
        yield Pair(
            clean=" ".join(["The words:", *words, words[at]]),
            corrupted=" ".join(["The words:", *changed, words[at]]),
            answers=(" " + words[at + 1],),
            wrong=tuple(" " + word for i, word in enumerate(words) if i not in (at, at + 1)),
            template=f"at-{at}",
            words=(*words, stranger),
        )
