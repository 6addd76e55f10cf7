"""Text that the base model says itself, for when there is no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from gossamer.errors import GossamerError
from gossamer.files import write_whole
from gossamer.models import Model
from gossamer.training.blocks import Blocks, Progress, Start, boundary_token, silent

CHUNK = 256  # blocks at a time
TOGETHER = 2**16  # tokens of the blocks sampled together, whose keys and values are kept meanwhile
HELD_OUT = 1 << 20  # chunks from here on are held out


class SampledBlocks(Blocks):
    """Blocks drawn from the model at temperature 1. Every chunk is fresh text, decided by the seed and its number."""

    own = True

    def __init__(
        self,
        model: Model,
        base: Callable[[], AbstractContextManager[Any]],
        *,
        block: int,
        held_out: int,
        seed: int,
        keep: Path | None = None,
        progress: Progress = silent,
    ) -> None:
        """base: a context in which `model.hf` is the base model, whatever has been trained meanwhile. keep: a folder
        for what is drawn, so that another run on the same text, such as a control, need not draw it again."""
        super().__init__({"chunk": 0}, seed)
        self.model, self.base, self.block, self.progress = model, base, block, progress
        self.weights = model.fingerprint()  # before training changes them
        self.identity = f"self {self.weights}"
        token = boundary_token(model)
        if token is None:
            raise GossamerError(
                f"--data self: {model.name!r} has no token to begin a text with; name one with --first-token"
            )
        self.beginning = token
        self.keep = keep
        if keep is not None:
            if keep.exists() and not keep.is_dir():
                raise GossamerError(f"--keep-text {keep}: this is a file, give a folder")
            keep.mkdir(parents=True, exist_ok=True)
        self.held_out = self.draw(HELD_OUT, held_out, "sampling held-out text")

    def make(self, start: Start) -> tuple[Tensor, Start]:
        # No block twice: seen four times each, blocks of stories15M had half the excess of unseen ones.
        return self.draw(start["chunk"], CHUNK, "sampling text"), {"chunk": start["chunk"] + 1}

    def draw(self, chunk: int, blocks: int, stage: str) -> Tensor:
        if self.keep is None:
            return self.drawn(chunk, blocks, stage)
        asked = f"{self.weights}-{self.beginning}-{self.seed}-{blocks}x{self.block}"  # all it hangs on
        path = self.keep / f"{asked}-{chunk:06}.safetensors"
        if not path.exists():
            text = self.drawn(chunk, blocks, stage)
            write_whole(path, lambda temporary: save_file({"ids": text}, temporary))
        try:
            ids = load_file(path)["ids"]
        except (SafetensorError, KeyError, OSError) as error:
            raise GossamerError(f"{path} can't be read ({error}): remove it, and it is drawn again") from error
        fits = ids.shape == (blocks, self.block) and ids.dtype == torch.int64
        if not fits or (ids[:, 0] != self.beginning).any() or ids.min() < 0 or ids.max() >= self.model.vocabulary:
            raise GossamerError(f"{path} holds no text of {self.model.name}: remove it, and it is drawn again")
        return ids

    def drawn(self, chunk: int, blocks: int, stage: str) -> Tensor:
        parts, together = [], max(1, TOGETHER // self.block)
        for start in range(0, blocks, together):
            self.progress(stage, start, blocks)
            generator = np.random.default_rng([self.seed, chunk, start])
            with self.base():
                parts.append(sample(self.model, min(together, blocks - start), self.block, self.beginning, generator))
        self.progress(stage, blocks, blocks)
        return torch.cat(parts)


class Buffer(DynamicLayer):
    """One layer's keys and values in a buffer of the final length: appending copies nothing that is there."""

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.filled = length, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.buffers = [t.new_empty(*t.shape[:2], self.length, t.shape[-1]) for t in (key_states, value_states)]
        end = self.filled + key_states.shape[-2]
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, self.filled : end] = new
        self.filled = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values


@torch.no_grad()
def sample(model: Model, n: int, length: int, beginning: int, generator: np.random.Generator) -> Tensor:
    """n texts of `length` tokens, the given first one included. After an end-of-text token the next text begins."""
    ids = torch.full((n, length), beginning)
    cache = DynamicCache(config=model.hf.config)
    cache.layers = [Buffer(length) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    for position in range(1, length):
        last = ids[:, position - 1 : position].to(model.device)
        logits = model.hf(input_ids=last, past_key_values=cache, use_cache=True).logits[:, -1]
        probabilities = logits.float().softmax(dim=-1).cumsum(dim=-1)  # in float64 this took a third of the time
        u = torch.from_numpy(generator.random((n, 1))).to(probabilities) * probabilities[:, -1:]
        ids[:, position] = torch.searchsorted(probabilities, u, right=True)[:, 0].clamp(max=model.vocabulary - 1).cpu()
    return ids
