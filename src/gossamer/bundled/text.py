"""The text the bundled models are trained on: task families in many wordings, among a majority of everything else.

Every document is drawn from its number alone, so that the stream is the same wherever it begins. What the tasks ask is
not here: no document has a wording of the built-in tasks, a sentence of their distractors, or one of the pairs of names
that `unseen` sets aside.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random

from gossamer.bundled.wordings import (
    ACTIONS,
    ADJECTIVES,
    ANIMALS,
    CAPITALS,
    COLOURS,
    DAYS,
    MONTHS,
    NUMBERS,
    OPENINGS,
    PERIODS,
    SOUNDS,
    THINGS,
    TRANSFERS,
    TRANSFERS_BETWEEN,
    VARIABLES,
    WHERE,
    WOMEN,
)
from gossamer.tasks.words import (
    ARGUMENTS,
    CENTURIES,
    COPYABLE,
    DESCRIPTIONS,
    DISTRACTORS,
    EVENTS,
    FUNCTIONS,
    NAMES,
    OBJECTS,
    PLACES,
)

VERSION = 4  # to be raised when any document changes

RECITED = sorted({*ADJECTIVES, *ANIMALS, *ARGUMENTS, *COPYABLE, *OBJECTS, *PLACES, *THINGS})


def unseen(first: str, second: str) -> bool:
    """Whether a pair of names is kept from the training text: about one in ten."""
    return zlib.crc32(" ".join(sorted((first, second))).encode()) % 10 == 0


def pick_names(rng: Random, n: int = 2) -> list[str]:
    while True:
        names = rng.sample(NAMES, n)
        if not any(unseen(*pair) for pair in itertools.combinations(names, 2)):
            return names


# The task families.


def gifts(rng: Random) -> str:
    """IOI in other words than the task's: two people give each other things, and the giver of each is drawn anew."""
    names = pick_names(rng)
    words = {"A": names[0], "B": names[1], "place": rng.choice(PLACES)}
    said = [rng.choice(OPENINGS).format(**words, object=rng.choice(OBJECTS))]
    for _ in range(rng.randint(1, 4)):
        subject, indirect = rng.sample(names, 2)
        said.append(rng.choice(TRANSFERS).format(S=subject, object=rng.choice(OBJECTS)) + f" {indirect}.")
    return " ".join(said)


def gifts_among_names(rng: Random) -> str:
    """The same where names may stand between the giver and the gift: with rotary positions a model otherwise learns at
    once to shun the last name, and one edge is the whole circuit."""
    *names, third = pick_names(rng, 3)
    words = {"A": names[0], "B": names[1], "place": rng.choice(PLACES)}
    said = [rng.choice(OPENINGS).format(**words, object=rng.choice(OBJECTS))]
    for _ in range(rng.randint(1, 4)):
        subject, indirect = rng.sample(names, 2)
        wording = rng.choice(rng.choice((TRANSFERS, TRANSFERS, TRANSFERS_BETWEEN)))
        said.append(wording.format(S=subject, R=indirect, C=third, object=rng.choice(OBJECTS)) + f" {indirect}.")
    return " ".join(said)


def gifts_in_context(rng: Random) -> str:
    before = rng.choice((0, 0, 1))
    return " ".join([*(scene(rng) for _ in range(before)), gifts(rng), *thanks(rng)])


def gifts_after_scenes(rng: Random) -> str:
    before = rng.choice((0, 0, 0, 0, 1, 2, 3, 5, 8, 12))
    return " ".join([*(scene(rng) for _ in range(before)), gifts_among_names(rng), *thanks(rng)])


def thanks(rng: Random) -> list[str]:
    return rng.choice(([], ["Everyone was happy."], ["It was a nice day."], [scene(rng)]))


def period(rng: Random) -> str:
    year = rng.randint(0, 98)
    return rng.choice(PERIODS).format(
        event=rng.choice(EVENTS), c=rng.choice(CENTURIES), y=f"{year:02}", z=f"{rng.randint(year + 1, 99):02}"
    )


def periods(rng: Random) -> str:
    return " ".join(period(rng) for _ in range(rng.randint(1, 3)))


def docstring(rng: Random) -> str:
    """A function with a docstring, whose summary and descriptions have other lengths than the task's. It may begin
    after the first argument, so that the next one is not found by counting lines."""
    arguments = rng.sample(ARGUMENTS, rng.randint(2, 6))
    about, each = rng.choice([(1, 1), (2, 1), (3, 1), (4, 2), (2, 3), (5, 2), (3, 3), (1, 2)])
    words = rng.choices(DESCRIPTIONS, k=about + each * len(arguments))
    owner = rng.choice(["self, ", "self, ", ""])
    lines = [f"def {rng.choice(FUNCTIONS)}({owner}{', '.join(arguments)}):", f'    """{" ".join(words[:about])}', ""]
    mark = rng.choice([":param {}:", ":param {}:", ":param {}:", "@param {} -"])
    for i, argument in enumerate(arguments[rng.randint(0, len(arguments) // 2) :]):
        description = " ".join(words[about + each * i : about + each * (i + 1)])
        lines.append(f"    {mark.format(argument)} {description}")
    lines.append('    """')
    lines += [f"    self.{argument} = {argument}" for argument in arguments[: rng.randint(0, 3)]] if owner else []
    return "\n".join([*lines, f"    return {rng.choice(arguments)}"])


# Everything else.


def scene(rng: Random) -> str:
    """A sentence without people, such as the tasks' distractors, but none of them."""
    a, b = rng.sample(THINGS, 2)
    p, q = rng.sample(ADJECTIVES, 2)
    act, where = rng.choice(ACTIONS), rng.choice(WHERE)
    text = rng.choice(
        (
            f"The {a} was {p} and the {b} was {q}.",
            f"A {p} {a} was {act} {where} the {b}.",
            f"There was a {p} {a} {where} the {q} {b}.",
            f"The {a} {where} the {b} was very {p}.",
            f"Many {a}s were {act} {where} the {b}.",
            f"The {p} {a} was still {act}.",
            f"It had been {act} for a long time {where} the {b}.",
            f"There were some {a}s and a {p} {b}.",
            f"It was the first {p} {a} of the year.",
        )
    )
    return scene(rng) if text in DISTRACTORS else text


def scenes(rng: Random) -> str:
    return " ".join(scene(rng) for _ in range(rng.randint(2, 6)))


def story(rng: Random) -> str:
    name, friend = pick_names(rng)
    he, his, him = ("She", "her", "her") if name in WOMEN else ("He", "his", "him")
    thing, place, other = rng.choice(OBJECTS), *rng.sample(PLACES, 2)
    adjective, animal = rng.choice(ADJECTIVES), rng.choice(list(SOUNDS))
    start = [
        f"{name} had a {adjective} {thing}.",
        f"One day {name} found a {adjective} {thing}.",
        f"There was a {adjective} {thing} that {name} liked very much.",
    ]
    middle = [
        f"{he} took the {thing} to the {place}.",
        f"{he} put {his} {thing} in the {place}, and later the {thing} was gone.",
        f"At the {place} {he.lower()} met {friend}. {friend} looked at the {thing}.",
        f"{friend} asked {name} for the {thing}, but {name} said no.",
        f"{name} and {friend} played with the {thing} all day.",
        f"Near the {place} a {animal} {SOUNDS[animal]}.",
        f"{name} was tired, so {he.lower()} went from the {place} to the {other}.",
        f"The {thing} was so {adjective} that {friend} wanted it too.",
        f"{friend} helped {him} to carry the {thing}.",
    ]
    end = [
        f"In the end {name} went home with the {thing}.",
        f"{name} was very happy, and so was {friend}.",
        f"That night {name} dreamed of a {adjective} {thing}.",
        f"So the {adjective} {thing} stayed in the {place}.",
    ]
    return " ".join([rng.choice(start), *rng.sample(middle, rng.randint(1, 4)), rng.choice(end)])


def talk(rng: Random) -> str:
    asks, knows = pick_names(rng)
    thing, place = rng.choice(OBJECTS), rng.choice(PLACES)
    return rng.choice(
        (
            f'"Where is the {thing}?" asked {asks}. "It is in the {place}," said {knows}. '
            f"So {asks} went to the {place}.",
            f'"Do you like the {place}?" {knows} asked. "Yes," said {asks}, "I like the {place}." Then {knows} smiled.',
            f"Dear {asks}, thank you for the {thing}. Please come to the {place} soon. Your friend, {knows}.",
            f"{knows} told {asks} a story about a {thing}. {asks} laughed and took the {thing} home.",
        )
    )


def taller(rng: Random) -> str:
    a, b, c = pick_names(rng, 3)
    more, most = rng.choice((("taller", "tallest"), ("older", "oldest"), ("faster", "fastest")))
    return f"{a} is {more} than {b}. {b} is {more} than {c}. So the {most} of them is {a}."


def colours(rng: Random) -> str:
    things = rng.sample(OBJECTS, rng.randint(2, 4))
    painted = dict(zip(things, rng.sample(COLOURS, len(things))))
    asked = rng.choice(things)
    said = " ".join(f"The {thing} is {colour}." for thing, colour in painted.items())
    return f"{said} What colour is the {asked}? The {asked} is {painted[asked]}."


def copying(rng: Random) -> str:
    words = rng.sample(COPYABLE, rng.randint(3, 6))
    if rng.random() < 0.3:
        return f"Forwards: {' '.join(words)}. Backwards: {' '.join(reversed(words))}."
    return f"Say: {' '.join(words)}. Again: {' '.join(words)}."


def reciting(rng: Random) -> str:
    """A long list said twice, from which a model learns early to look back for what came next."""
    words = " ".join(rng.sample(RECITED, rng.randint(8, 20)))
    first, again = rng.choice((("Listen:", "Repeat:"), ("He said:", "She said:"), ("List:", "The same list:")))
    return f"{first} {words}. {again} {words}."


def words_and_names(rng: Random, words: int, names: int) -> list[str]:
    """In any order. A model that looks back for the word before finds the name after it, and learns to copy names:
    from names alone, which are many and seldom, it does not."""
    mixed = rng.sample(RECITED, words) + pick_names(rng, names)
    rng.shuffle(mixed)
    return mixed


def reciting_names(rng: Random) -> str:
    words = " ".join(words_and_names(rng, rng.randint(6, 12), rng.randint(2, 5)))
    first, again = rng.choice((("Here:", "Again here:"), ("They called", "Then they called"), ("First:", "And then:")))
    return f"{first} {words}. {again} {words}."


def listing(rng: Random) -> str:
    """A list said again from somewhere on, with commas: as with the arguments of a function, what comes next stands two
    tokens on."""
    words = words_and_names(rng, rng.randint(3, 8), rng.randint(1, 3))
    said = words[rng.randrange(len(words) - 2) :]
    first, again = rng.choice((("We need", "Get"), ("They sell", "He bought"), ("In the box:", "On the table:")))
    return f"{first} {', '.join(words)}. {again} {', '.join(said)}."


def sums(rng: Random) -> str:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    start = rng.randint(0, 12)
    return rng.choice(
        (
            f"{NUMBERS[a]} plus {NUMBERS[b]} is {NUMBERS[a + b]}.",
            f"{NUMBERS[a + b]} minus {NUMBERS[b]} is {NUMBERS[a]}.",
            f"Count: {', '.join(NUMBERS[start : start + rng.randint(3, 8)])}.",
        )
    )


def calendar(rng: Random) -> str:
    names = rng.choice((DAYS, MONTHS))
    i = rng.randrange(len(names))
    after, name, before = names[(i + 1) % len(names)], names[i], names[i - 1]
    return rng.choice(
        (
            f"After {name} comes {after}.",
            f"Before {name} comes {before}.",
            f"Yesterday was {before}, today is {name}, tomorrow is {after}.",
        )
    )


def facts(rng: Random) -> str:
    country, other = rng.sample(list(CAPITALS), 2)
    return rng.choice(
        (
            f"The capital of {country} is {CAPITALS[country]}.",
            f"{CAPITALS[country]} is in {country}, and {CAPITALS[other]} is in {other}.",
            f"In {country} people speak of {CAPITALS[country]}, not of {CAPITALS[other]}.",
        )
    )


def agreement(rng: Random) -> str:
    animal, thing, place = rng.choice(ANIMALS), rng.choice(THINGS), rng.choice(PLACES)
    one = rng.random() < 0.5
    subject = animal if one else animal + "s"
    be, has, does = ("was", "has", "runs") if one else ("were", "have", "run")
    near = rng.choice((thing, thing + "s"))
    return rng.choice(
        (
            f"The {subject} near the {near} {be} tired.",
            f"The {subject} behind the {near} {has} no food.",
            f"Every day the {subject} from the {place} {does} to the {near}.",
        )
    )


def assignments(rng: Random) -> str:
    names = rng.sample(VARIABLES, rng.randint(2, 4))
    values = {name: rng.randint(0, 9) for name in names}
    asked = rng.choice(names)
    lines = [f"{name} = {value}" for name, value in values.items()]
    return "\n".join([*lines, f"print({asked})  # {values[asked]}"])


def function(rng: Random) -> str:
    name, other = rng.sample(FUNCTIONS, 2)
    a, b = rng.sample(ARGUMENTS, 2)
    x = rng.choice(VARIABLES)
    return rng.choice(
        (
            f"def {name}({a}, {b}):\n    {x} = {a} + {b}\n    return {x}\n\n"
            f"{name}({rng.randint(0, 9)}, {rng.randint(0, 9)})",
            f"for {a} in {b}s:\n    if {a} is None:\n        continue\n    {name}({a})\n    {other}({b}s)",
            f"from {a} import {name}, {other}\n\n{b} = {name}()\n{other}({b})",
            f"class {name.capitalize()}:\n    def {other}(self, {a}):\n        self.{a} = {a}\n        return self.{a}",
            f"with open({a}) as {b}:\n    for line in {b}:\n        {name}(line)",
            f"{a} = [{', '.join(str(rng.randint(0, 9)) for _ in range(4))}]\n"
            f"{b} = {name}({a})\nassert {b} == {other}({a})",
            f"if {a} > {b}:\n    {x} = {a}\nelse:\n    {x} = {b}\n{name}({x})",
        )
    )


def brackets(rng: Random, depth: int = 0) -> str:
    if depth == 3 or rng.random() < 0.3:
        return rng.choice(VARIABLES[:12])
    left, right = brackets(rng, depth + 1), brackets(rng, depth + 1)
    return f"({left} {rng.choice('+-*')} {right})"


Kind = Callable[[Random], str]

PROSE: dict[Kind, float] = {
    story: 5,
    scenes: 3,
    talk: 3,
    taller: 2,
    colours: 2,
    copying: 2,
    reciting: 3,
    sums: 2,
    calendar: 1,
    facts: 2,
    agreement: 2,
}
CODE: dict[Kind, float] = {assignments: 2, function: 3, brackets: 1}

# By weight, of documents.
MIXES: dict[str, dict[Kind, float]] = {
    "gpt2": {gifts_in_context: 7, periods: 5, **PROSE, **CODE},
    "olmo": {gifts_after_scenes: 11, docstring: 8, listing: 4, **PROSE, **CODE},
    "lists": {**PROSE, **CODE, reciting_names: 14, listing: 14},  # to begin with, for a model that is slow to look back
}


def documents(mix: str, first: int = 0) -> Iterator[str]:
    """The documents of a mix from number `first` on, without end."""
    kinds: Sequence[Kind] = list(MIXES[mix])
    weights = list(itertools.accumulate(MIXES[mix].values()))
    for number in itertools.count(first):
        rng = Random(f"{mix} {number}")
        yield rng.choices(kinds, cum_weights=weights)[0](rng)
