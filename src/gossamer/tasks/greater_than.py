"""Greater Than: a period ends after it began."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gossamer.models import Model
from gossamer.tasks.pair import Pair
from gossamer.tasks.words import CENTURIES, EVENTS

METRIC = "probability difference"

TEXT = "The {event} lasted from the year {century}{year} to the year {century}"


def candidates(rng: Random, model: Model) -> Iterator[Pair]:
    """Right: the years after YY; wrong: YY and those before. Corrupted: YY becomes 01, so every year is right.

    Where the tokenizer writes each digit as a token, the model is asked for the next digit. The question stays the same
    if YY ends in 9: a year comes after 39 exactly if its first digit is above 3.
    """
    digits = splits_digits(model)
    while True:
        event, century = rng.choice(EVENTS), rng.choice(CENTURIES)
        if digits:
            year = 10 * rng.randint(1, 8) + 9
            answers = [str(digit) for digit in range(year // 10 + 1, 10)]
            wrong = [str(digit) for digit in range(year // 10 + 1)]
        else:
            year = rng.randint(2, 98)
            answers = [f"{y:02}" for y in range(year + 1, 100)]
            wrong = [f"{y:02}" for y in range(year + 1)]
        yield Pair(
            clean=TEXT.format(event=event, century=century, year=f"{year:02}"),
            corrupted=TEXT.format(event=event, century=century, year="01"),
            answers=tuple(answers),
            wrong=tuple(wrong),
            template="digit" if digits else "year",
        )


def splits_digits(model: Model) -> bool:
    """Whether a year is one token per digit, as in Llama 2 and SmolLM."""
    return len(model.encode("in 1734")) - len(model.encode("in 17")) == 2
