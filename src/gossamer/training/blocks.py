"""Text as blocks of tokens: a held-out part, and an endless, shuffled, resumable stream to train on.

A block begins with the model's first token where it has one. Documents follow each other with that token, or the
end-of-text token, between them. The stream is made chunk by chunk; a chunk depends only on where it begins, so that a
resumed run makes the same one again.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.training.documents import Documents

HELD_OUT = 10  # every tenth document is never trained on
PIECE = 4096  # characters: longer documents are cut, and count as several
CHUNK = 512  # blocks shuffled together

Progress = Callable[[str, int, int], None]
Start = dict[str, Any]  # where a chunk begins


def silent(_stage: str, _done: int, _total: int) -> None:
    pass


class Blocks(ABC):
    """Blocks of tokens, (n, block)."""

    held_out: Tensor
    identity: str
    own = False  # whether the model wrote it itself

    def __init__(self, start: Start, seed: int) -> None:
        self.start = start
        self.seed = seed
        self.after = start  # where the next chunk begins
        self.chunk: Tensor | None = None
        self.taken = 0  # of this chunk

    @abstractmethod
    def make(self, start: Start) -> tuple[Tensor, Start]:
        """The chunk that begins there, and where the next one does."""

    def take(self, n: int) -> Tensor:
        """The next n blocks."""
        parts: list[Tensor] = []
        while n > 0:
            if self.chunk is None or self.taken == len(self.chunk):
                if self.chunk is not None:
                    self.start, self.taken = self.after, 0
                self.chunk, self.after = self.make(self.start)
            parts.append(self.chunk[self.taken : self.taken + n])
            self.taken += len(parts[-1])
            n -= len(parts[-1])
        return torch.cat(parts)

    def state(self) -> dict[str, Any]:
        return {"start": self.start, "taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        self.start, self.taken = state["start"], state["taken"]
        self.chunk, self.after = self.make(self.start)


class TextBlocks(Blocks):
    def __init__(
        self, source: Documents, model: Model, *, block: int, held_out: int, seed: int, progress: Progress = silent
    ) -> None:
        super().__init__({"epoch": 0, "document": 0, "piece": 0, "offset": 0, "left": []}, seed)
        self.source, self.model, self.block = source, model, block
        self.identity = source.identity
        self.boundary = boundary_token(model)
        self.held_out = self.hold_out(held_out, progress)

    def pieces(self, document: int = 0, piece: int = 0, offset: int = 0) -> Iterator[tuple[Start, str, bool]]:
        """Documents, the longest in pieces: where it is, the text, and whether a document begins."""
        for text in self.source(document):
            parts = cut(text, PIECE)
            for index, part in enumerate(parts[offset:], start=offset):
                if part:
                    yield {"document": document, "piece": piece, "offset": index}, part, index == 0
                    piece += 1
            document, offset = document + 1, 0

    def tokens(self, pieces: Iterator[tuple[Start, str, bool]]) -> Iterator[tuple[Start, list[int]]]:
        """Token ids of pieces, many encoded together."""
        while batch := list(itertools.islice(pieces, 64)):
            encoded = self.model.tokenizer([text for _, text, _ in batch], add_special_tokens=False).input_ids
            for (where, _, begins), ids in zip(batch, encoded, strict=True):
                self.model.check_tokens(ids)
                yield where, ([self.boundary] if begins and self.boundary is not None else []) + ids

    @property
    def width(self) -> int:
        """Tokens of text in a block."""
        return self.block - (self.model.first_token is not None)

    def shape(self, ids: list[int]) -> Tensor:
        blocks = torch.tensor(ids, dtype=torch.long).view(-1, self.width)
        if self.model.first_token is not None:
            blocks = torch.cat([torch.full((len(blocks), 1), self.model.first_token), blocks], dim=1)
        return blocks

    def hold_out(self, wanted: int, progress: Progress) -> Tensor:
        """Every tenth piece, until there are enough of them."""
        tenth = (piece for piece in self.pieces() if is_held(piece[0]))
        ids: list[int] = []
        for _, more in self.tokens(tenth):
            ids += more
            progress("reading held-out text", min(wanted, len(ids) // self.width), wanted)
            if len(ids) >= wanted * self.width:
                break
        blocks = min(wanted, len(ids) // self.width)
        if not ids:
            raise GossamerError(
                f"--data {self.source.name} is too short: every tenth document is held out, or every tenth {PIECE:,} "
                "characters of a longer one, and it has fewer than ten; give more text"
            )
        if blocks == 0:
            raise GossamerError(
                f"--data {self.source.name} is too short: a tenth of it, {len(ids)} tokens, is held out, and that does "
                f"not fill a block of {self.block}; give more text, or a smaller --block"
            )
        return self.shape(ids[: blocks * self.width])

    def make(self, start: Start) -> tuple[Tensor, Start]:
        ids: list[int] = list(start["left"])
        pieces = self.pieces(start["document"], start["piece"], start["offset"])
        trained_on = (piece for piece in pieces if not is_held(piece[0]))
        wanted = CHUNK * self.width
        after = {"epoch": start["epoch"] + 1, "document": 0, "piece": 0, "offset": 0}
        for where, more in self.tokens(trained_on):
            if len(ids) >= wanted:
                after = {"epoch": start["epoch"], **where}
                break
            ids += more
        blocks = len(ids) // self.width
        if blocks == 0 and after["epoch"] > start["epoch"] and start["piece"] == 0:  # all of the text
            raise GossamerError(
                f"--data {self.source.name} is too short: {len(ids)} tokens are left to train on, a block takes "
                f"{self.block}; give more text, or a smaller --block"
            )
        chunk = self.shape(ids[: blocks * self.width])
        mixed = np.random.default_rng([self.seed, start["epoch"], start["piece"]]).permutation(blocks)
        return chunk[torch.from_numpy(mixed)], {**after, "left": ids[blocks * self.width :]}


def is_held(where: Start) -> bool:
    return bool(where["piece"] % HELD_OUT == HELD_OUT - 1)


def boundary_token(model: Model) -> int | None:
    """What stands between documents, and starts a text."""
    return model.first_token if model.first_token is not None else model.tokenizer.eos_token_id


def cut(text: str, longest: int) -> list[str]:
    """Pieces of at most `longest` characters, cut before a space where there is one."""
    pieces = []
    start = 0
    while len(text) - start > longest:
        space = text.rfind(" ", start + 1, start + longest)
        end = space if space > start else start + longest
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]
