"""The attention patterns of the heads that a task needs, on one of its prompts: what the grid shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gossamer.attention.function import AttentionCall
from gossamer.attention.passes import session
from gossamer.circuits.batch import Batch
from gossamer.comparison.stored import Stored
from gossamer.errors import GossamerError
from gossamer.files import write_whole
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

FILE = "patterns.safetensors"


@dataclass(frozen=True, eq=False)
class Patterns:
    heads: list[tuple[int, int]]  # layer, head
    patterns: np.ndarray  # (head, query, key)
    tokens: list[str]
    reached: bool  # whether these heads explain 90%

    @classmethod
    def of(cls, model: Model, prompts: Prompts, dataset: Stored, *, prompt: int = 0) -> Patterns:
        """The heads of the dataset ranking that explain 90%, or all of them if that is not reached."""
        k = dataset.k90
        heads = dataset.best_heads(dataset.total if k is None else k)
        batch = Batch.of(prompts, [prompt], model.device)
        wanted = Some(heads)
        with torch.no_grad(), session(model.hf, model.layers) as passes:
            passes(batch.clean, batch.mask, read=batch.read, probe=wanted)
        tokens = [str(model.tokenizer.decode([token])) for token in batch.clean[0].tolist()]
        stacked = torch.cat(wanted.found) if wanted.found else torch.zeros(0, len(tokens), len(tokens))
        return cls(heads, stacked.numpy(), tokens, k is not None)

    def save(self, path: Path) -> None:
        tensors = {
            "patterns": torch.from_numpy(self.patterns).half(),
            "heads": torch.tensor(self.heads, dtype=torch.int16).view(-1, 2),
        }
        about = {"tokens": json.dumps(self.tokens), "reached": json.dumps(self.reached)}
        write_whole(path, lambda temporary: save_file(tensors, temporary, metadata=about))

    @classmethod
    def read(cls, path: Path) -> Patterns:
        try:
            with safe_open(path, framework="np") as file:
                about = file.metadata()
                heads = [(int(layer), int(head)) for layer, head in file.get_tensor("heads")]
                patterns = file.get_tensor("patterns").astype(np.float32)
            return cls(heads, patterns, json.loads(about["tokens"]), json.loads(about["reached"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise GossamerError(f"{path} can't be read: {error}") from error


class Some:
    """A probe that remembers the patterns of some heads only: those of all heads of a large model would not fit."""

    def __init__(self, heads: list[tuple[int, int]]) -> None:
        self.heads = heads
        self.found: list[Tensor] = []  # of each layer with such heads, (head, query, key)

    def __call__(self, call: AttentionCall) -> Tensor:
        if here := [head for layer, head in self.heads if layer == call.layer]:
            self.found.append(call.pattern[0, here].float().cpu())
        return call.output
