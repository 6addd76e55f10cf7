"""Prompts as tensors, in batches that fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from gossamer.attention.function import Prefix
from gossamer.attention.passes import Passes, Readout
from gossamer.errors import OutOfMemory
from gossamer.models import Model
from gossamer.tasks.metric import Metric
from gossamer.tasks.pair import EncodedPair, Prompts

T = TypeVar("T")

PASS = {"cpu": 50}  # tokens that take as long as a pass takes whatever its size (47 to 68 in models of 0.2M to 135M)
PASS_ELSEWHERE = 1000


@dataclass(frozen=True, eq=False)
class Batch:
    """Some prompts of a task, padded on the right."""

    rows: list[int]  # which prompts
    clean: Tensor  # (prompt, position)
    corrupted: Tensor  # (prompt, position)
    mask: Tensor | None  # (prompt, position), None if nothing is padded
    lengths: Tensor  # (prompt,)
    metric: Metric
    prefix: Prefix | None = None  # if there is one, all of the above is of the positions after it

    @classmethod
    def of(cls, prompts: Prompts, rows: Sequence[int], device: torch.device) -> Batch:
        pairs = [prompts.pairs[row] for row in rows]
        lengths = torch.tensor([len(pair) for pair in pairs])
        width = int(lengths.max())
        clean, corrupted = (torch.zeros(len(pairs), width, dtype=torch.long) for _ in range(2))
        for row, pair in enumerate(pairs):
            clean[row, : len(pair)] = torch.tensor(pair.clean)
            corrupted[row, : len(pair)] = torch.tensor(pair.corrupted)
        mask = (torch.arange(width) < lengths[:, None]).long()
        return cls(
            rows=list(rows),
            clean=clean.to(device),
            corrupted=corrupted.to(device),
            mask=None if bool(mask.all()) else mask.to(device),
            lengths=lengths.to(device),
            metric=Metric.of(prompts.metric, pairs, device),
        )

    def after_prefix(self, passes: Passes) -> Batch:
        """The same batch from the first position where a clean and a corrupted prompt differ.

        Before it nothing differs, whatever is kept or replaced by its corrupted value: that part is computed once.
        """
        same = (self.clean == self.corrupted).all(dim=0).long()
        length = int(same.cumprod(dim=0).sum())
        if not worth(length, self.clean.shape[1]):
            return self
        return Batch(
            rows=self.rows,
            clean=self.clean[:, length:],
            corrupted=self.corrupted[:, length:],
            mask=None,  # the prefix knows what every position sees
            lengths=self.lengths - length,
            metric=self.metric,
            prefix=passes.prefix(self.clean, self.mask, length),
        )

    @property
    def read(self) -> Readout:
        """The last position of each prompt, and the answers' logits."""
        return Readout(self.lengths - 1, self.metric.read_tokens)


def cut(prompts: Prompts, rows: Sequence[int], size: int, device: torch.device, *, prefix: bool) -> list[list[int]]:
    """The rows in batches of at most `size`, long ones first: too large a batch shows at once.

    A pass computes every prompt of a batch as long as the longest and, with a `prefix`, from the first position where
    any of them differs from its corrupted twin. So prompts go together that are alike in both; of all ways to cut them
    in that order the one is taken that computes the fewest tokens, each pass counted as some tokens more.
    """
    start = {row: differs_at(prompts.pairs[row]) if prefix else 0 for row in rows}
    length = {row: len(prompts.pairs[row]) for row in rows}
    ordered = sorted(rows, key=lambda row: (start[row] - length[row], -length[row], row))
    a_pass = PASS.get(device.type, PASS_ELSEWHERE)
    best, cuts = [0], [0]  # of the first rows: what they cost, and where their last batch begins
    for end in range(1, len(ordered) + 1):
        first, longest, found = start[ordered[end - 1]], 0, []
        for begin in range(end - 1, max(-1, end - 1 - size), -1):
            row = ordered[begin]
            first, longest = min(first, start[row]), max(longest, length[row])
            width = longest - first if worth(first, longest) else longest
            found.append((best[begin] + a_pass + width * (end - begin), begin))
        cost, begin = min(found)
        best.append(cost)
        cuts.append(begin)
    batches, end = [], len(ordered)
    while end:
        batches.append(ordered[cuts[end] : end])
        end = cuts[end]
    return batches[::-1]


def differs_at(pair: EncodedPair) -> int:
    """The first position where a prompt and its corrupted twin differ."""
    pairs = zip(pair.clean, pair.corrupted)
    return next((position for position, (one, other) in enumerate(pairs) if one != other), len(pair))


def worth(prefix: int, length: int) -> bool:
    """Whether computing the beginning of so many tokens once is worth a pass."""
    return prefix >= length / 4


def fitting_size(model: Model, prompts: Prompts, *, patterns: bool) -> int:
    """How many prompts to take at once: enough tokens to keep the device busy, and few enough maps for its memory."""
    longest = max(len(pair) for pair in prompts.pairs)
    tokens = 2048 if model.device.type == "cpu" else 16384
    size = tokens // longest
    if patterns:
        # The clean and the replacing pattern, scores, their order and ranks: 32 bytes an entry of every layer's map.
        entries = model.n_layers * model.n_heads * longest * longest
        memory = torch.cuda.mem_get_info(model.device)[0] // 2 if model.device.type == "cuda" else 2 * 1024**3
        size = min(size, memory // (32 * entries))
    return max(1, min(size, len(prompts)))


def in_batches(
    batches: Sequence[Sequence[int]], work: Callable[[Sequence[int]], T]
) -> Iterator[tuple[Sequence[int], T]]:
    """Do `work` on the rows of each batch, in ever smaller parts whenever memory runs out.

    Raises:
        OutOfMemory: one row alone does not fit.
    """
    waiting = deque(batches)
    most = max(map(len, batches), default=0)
    while waiting:
        rows = waiting.popleft()
        if len(rows) > most:
            waiting.appendleft(rows[most:])
        some = rows[:most]
        try:
            done = work(some)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if len(some) == 1:
                raise OutOfMemory(
                    "out of memory with a single prompt: use shorter prompts or a larger device"
                ) from error
            most = len(some) // 2
            waiting.appendleft(some)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        yield some, done


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
