"""What a task measures in the logits after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.attention.function import upcast
from gossamer.tasks.pair import EncodedPair

LOGIT = "logit difference"
PROBABILITY = "probability difference"

DEFINITIONS = {
    LOGIT: "mean logit of the right answers minus mean logit of the wrong ones",
    PROBABILITY: "summed probability of the right answers minus that of the wrong ones, over the whole vocabulary",
}


@dataclass(frozen=True, eq=False)
class Metric:
    """A batch's answers, and the metric over them."""

    kind: str
    tokens: Tensor  # (prompt, n) answer tokens, right ones first, padded with 0
    right: Tensor  # (prompt, n) bool
    wrong: Tensor  # (prompt, n) bool

    @classmethod
    def of(cls, kind: str, pairs: Sequence[EncodedPair], device: torch.device) -> Metric:
        n = max(len(pair.answers) + len(pair.wrong) for pair in pairs)
        tokens = torch.zeros(len(pairs), n, dtype=torch.long)
        right = torch.zeros(len(pairs), n, dtype=torch.bool)
        wrong = torch.zeros(len(pairs), n, dtype=torch.bool)
        for row, pair in enumerate(pairs):
            middle, end = len(pair.answers), len(pair.answers) + len(pair.wrong)
            tokens[row, :end] = torch.tensor(pair.answers + pair.wrong)
            right[row, :middle] = True
            wrong[row, middle:end] = True
        return cls(kind, tokens.to(device), right.to(device), wrong.to(device))

    @property
    def read_tokens(self) -> Tensor | None:
        """The part of the vocabulary that the metric needs: probabilities need all of it."""
        return self.tokens if self.kind == LOGIT else None

    def __getitem__(self, rows: Tensor) -> Metric:
        return Metric(self.kind, self.tokens[rows], self.right[rows], self.wrong[rows])

    def values(self, logits: Tensor) -> Tensor:
        """The metric of each prompt, (prompt,), from logits (prompt, n) or (prompt, vocabulary)."""
        logits = upcast(logits)
        right, wrong = self.right.to(logits.device), self.wrong.to(logits.device)
        if self.kind == LOGIT:
            zeros = torch.zeros_like(logits)
            means = [torch.where(m, logits, zeros).sum(-1) / m.sum(-1) for m in (right, wrong)]
            return means[0] - means[1]
        chosen = logits.softmax(dim=-1).gather(-1, self.tokens.to(logits.device))
        return (chosen * right).sum(-1) - (chosen * wrong).sum(-1)

    def correct(self, logits: Tensor) -> Tensor:
        """Whether each prompt is answered right, (prompt,): the worst right answer above the best wrong one; for
        probabilities, more of it on the right answers than on the wrong ones."""
        if self.kind == PROBABILITY:
            return self.values(logits) > 0
        logits = upcast(logits)
        right, wrong = self.right.to(logits.device), self.wrong.to(logits.device)
        worst = logits.masked_fill(~right, torch.inf).min(dim=-1).values
        best = logits.masked_fill(~wrong, -torch.inf).max(dim=-1).values
        return worst > best
