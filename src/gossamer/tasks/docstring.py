"""Docstring: the next `:param` names the next argument of the signature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from gossamer.models import Model
from gossamer.tasks.pair import Pair
from gossamer.tasks.words import ARGUMENTS, DESCRIPTIONS, FUNCTIONS

METRIC = "logit difference"


def candidates(rng: Random, model: Model) -> Iterator[Pair]:
    """Right: the first argument without a line of its own; wrong: the mean of all other arguments of the signature.

    Corrupted, each half of the time: the signature has other arguments (the answer is nowhere), or the docstring
    documents other ones (the answer is there, but not its place).
    """
    while True:
        n_arguments, n_documented = rng.choice([(4, 1), (4, 2), (5, 2), (5, 3), (6, 3)])
        names = rng.sample(ARGUMENTS, 2 * n_arguments)  # each one token: prompts that don't align are dropped
        arguments, others = names[:n_arguments], names[n_arguments:]
        words = rng.sample(DESCRIPTIONS, 3 + 2 * n_documented)
        function = rng.choice(FUNCTIONS)
        where = rng.choice(["signature", "docstring"])
        clean = write(function, arguments, arguments[:n_documented], words)
        if where == "signature":
            corrupted = write(function, others, arguments[:n_documented], words)
        else:
            corrupted = write(function, arguments, others[:n_documented], words)
        answer = arguments[n_documented]
        yield Pair(
            clean=clean,
            corrupted=corrupted,
            answers=(" " + answer,),
            wrong=tuple(" " + name for name in arguments if name != answer),
            template=f"{n_arguments}-{n_documented}-{where}",
        )


def write(function: str, arguments: Sequence[str], documented: Sequence[str], words: Sequence[str]) -> str:
    lines = [f"def {function}(self, {', '.join(arguments)}):", f'    """{" ".join(words[:3])}', ""]
    for i, argument in enumerate(documented):
        lines.append(f"    :param {argument}: {words[3 + 2 * i]} {words[4 + 2 * i]}")
    return "\n".join([*lines, "    :param"])
