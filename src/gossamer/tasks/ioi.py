"""Indirect object identification: the name that was mentioned once."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gossamer.models import Model
from gossamer.tasks.pair import Pair
from gossamer.tasks.words import DISTRACTORS, NAMES, OBJECTS, PLACES

METRIC = "logit difference"

# No template starts with a name: without a space before it, a name would be another token.
TEMPLATES = (
    "When {A} and {B} went to the {place}, {S} gave a {object} to",
    "Then, {A} and {B} went to the {place}. {S} gave a {object} to",
    "One day, {A} and {B} went to the {place}. {S} gave a {object} to",
    "One morning, {A} and {B} were playing at the {place}. {S} gave a {object} to",
    "While {A} and {B} were at the {place}, {S} gave a {object} to",
    "After {A} and {B} came to the {place}, {S} handed a {object} to",
    "Last week {A} and {B} met at the {place}. Then {S} passed a {object} to",
    "Yesterday {A} and {B} walked to the {place}. {S} showed a {object} to",
    "Today {A} and {B} had a lot of fun at the {place}. {S} gave a {object} to",
    "That day {A} and {B} were happy to be at the {place}. {S} gave a {object} to",
    "The two friends {A} and {B} found a {object} at the {place}. {S} gave it to",
    "Two friends, {A} and {B}, were walking near the {place}. {S} decided to give a {object} to",
    "In the morning, {A} and {B} saw a {object} at the {place}. {S} gave it to",
    "After lunch, {A} and {B} went back to the {place}. {S} gave a {object} to",
    "After the long day, {A} and {B} sat near the {place}. {S} offered a {object} to",
    "Because it was sunny, {A} and {B} went to the {place}. {S} threw a {object} to",
    "In the evening, {A} and {B} went home from the {place}. On the way, {S} gave a {object} to",
    "There was a {object} at the {place}. {A} and {B} saw it, and {S} gave it to",
)


def candidates(rng: Random, model: Model) -> Iterator[Pair]:
    """ABBA and BABA: the order of the first two names is free, the subject S is named again, the other is the answer.
    Corrupted: the second mention of the subject is a third name, so nothing tells the two apart."""
    while True:
        number = rng.randrange(len(TEMPLATES))
        indirect, subject, third = rng.sample(NAMES, 3)
        abba = rng.random() < 0.5
        words = {
            "A": indirect if abba else subject,
            "B": subject if abba else indirect,
            "place": rng.choice(PLACES),
            "object": rng.choice(OBJECTS),
        }
        yield Pair(
            clean=TEMPLATES[number].format(S=subject, **words),
            corrupted=TEMPLATES[number].format(S=third, **words),
            answers=(" " + indirect,),
            wrong=(" " + subject,),
            template=f"{number + 1}-{'ABBA' if abba else 'BABA'}",
            words=(*words.values(), third),
        )


LONG_BEFORE = (60, 120)  # tokens of distraction before the question


def long_candidates(rng: Random, model: Model) -> Iterator[Pair]:
    """IOI after distractor sentences of 60 to 120 tokens, the number drawn evenly."""
    short, most = LONG_BEFORE
    for pair in candidates(rng, model):
        least = rng.randint(short, most - 10)
        order = rng.sample(range(len(DISTRACTORS)), len(DISTRACTORS))
        used = 1
        while len(model.encode(before := " ".join(DISTRACTORS[i] for i in order[:used]))) < least:
            used += 1
        if short <= len(model.encode(before)) <= most:
            yield Pair(
                clean=f"{before} {pair.clean}",
                corrupted=f"{before} {pair.corrupted}",
                answers=pair.answers,
                wrong=pair.wrong,
                template=f"{pair.template} after {','.join(map(str, order[:used]))}",
                words=pair.words,
            )
