"""A pair of prompts, and how it becomes tokens that line up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gossamer.errors import GossamerError
from gossamer.models import Model


@dataclass(frozen=True)
class Pair:
    """A clean and a corrupted prompt, with the right and the wrong continuations of the clean one."""

    clean: str
    corrupted: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    template: str = ""  # pairs of one template and length share the meaning of every position
    words: tuple[str, ...] = ()  # words of the prompt that must each be one token


@dataclass(frozen=True)
class EncodedPair:
    """A pair in one model's tokens."""

    pair: Pair
    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    answers: tuple[int, ...]
    wrong: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.clean)


class Unfit(ValueError):
    """Why a pair can't be used with a model's tokenizer: `reason` is counted, `detail` is shown."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def encode(pair: Pair, model: Model) -> EncodedPair:
    """Tokenise a pair, or say why it does not fit.

    Raises:
        Unfit: the prompts differ in length or in their last token, are the same or too long for the model, or an
            answer is not a single token after the prompt.
    """
    clean, corrupted = model.encode(pair.clean), model.encode(pair.corrupted)
    if not clean:
        raise Unfit("empty prompt", "the clean prompt has no tokens")
    if len(clean) != len(corrupted):
        raise Unfit(
            "prompts of unequal length",
            f"the clean prompt has {len(clean)} tokens and the corrupted one {len(corrupted)}: "
            "they must align token by token",
        )
    if clean == corrupted:
        raise Unfit("identical prompts", "the clean and the corrupted prompt are the same")
    if clean[-1] != corrupted[-1]:
        raise Unfit("different last tokens", "the last token must be the same in the clean and the corrupted prompt")
    if model.context is not None and len(clean) > model.context:
        raise Unfit(
            "longer than the context",
            f"the prompt has {len(clean)} tokens, the model takes {model.context}: shorten it",
        )
    for word in pair.words:
        if len(model.encode("the " + word)) != len(model.encode("the")) + 1:
            raise Unfit("word of several tokens", f"{word!r} is not a single token")
    answers = tuple(answer_token(pair.clean, answer, model) for answer in pair.answers)
    wrong = tuple(answer_token(pair.clean, answer, model) for answer in pair.wrong)
    if both := set(answers) & set(wrong):
        token = model.tokenizer.decode([min(both)])
        raise Unfit("answer both right and wrong", f"{token!r} is a right and a wrong answer at once")
    return EncodedPair(pair, clean, corrupted, answers, wrong)


def answer_token(prompt: str, answer: str, model: Model) -> int:
    """The single token by which `answer` follows `prompt`."""
    before, after = model.encode(prompt), model.encode(prompt + answer)
    if after[:-1] == before:
        if after[-1] == model.tokenizer.unk_token_id:
            raise Unfit("answer unknown to the tokenizer", f"the answer {answer[:60]!r} is not in the vocabulary")
        return after[-1]
    # "... the year 17" + "76" may be written " 1776" in one token; the model can still say "76" after " 17".
    alone = model.tokenizer(answer, add_special_tokens=False).input_ids
    if len(alone) == 1 and model.tokenizer.decode(alone) == answer:
        return int(alone[0])
    raise Unfit("answer of several tokens", f"the answer {answer[:60]!r} is not a single token after its prompt")


@dataclass(frozen=True)
class Prompts:
    """The prompts of a task for one model, with the count of those that did not fit."""

    task: str
    metric: str
    pairs: tuple[EncodedPair, ...] = field(repr=False)
    seed: int
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)

    def some(self, rows: Sequence[int]) -> Prompts:
        """Those of the given numbers."""
        return replace(self, pairs=tuple(self.pairs[row] for row in rows))

    @property
    def shared_positions(self) -> bool:
        """Whether position i means the same in every prompt: one template, one length."""
        return len({(pair.pair.template, len(pair)) for pair in self.pairs}) == 1


def choose(candidates: Iterable[Pair], model: Model, n: int, *, task: str, metric: str, seed: int) -> Prompts:
    """The first `n` different candidates that fit the model's tokenizer.

    Raises:
        GossamerError: fewer than `n` fit.
    """
    if n < 1:
        raise GossamerError(f"{n} prompts asked for: ask for at least 1")
    kept: list[EncodedPair] = []
    seen: set[Pair] = set()
    dropped: Counter[str] = Counter()
    for tries, pair in enumerate(candidates):
        if len(kept) == n or tries == 200 * n + 10_000:
            break
        if pair in seen:
            continue
        seen.add(pair)
        try:
            kept.append(encode(pair, model))
        except Unfit as unfit:
            dropped[unfit.reason] += 1
    if len(kept) < n:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common()) or "no more candidates"
        raise GossamerError(
            f"only {len(kept)} of the {n} prompts asked for {task} fit the tokenizer of {model.name!r} "
            f"({reasons}): ask for fewer, or use another task"
        )
    return Prompts(task=task, metric=metric, pairs=tuple(kept), seed=seed, dropped=dict(dropped))
