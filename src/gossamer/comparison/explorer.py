"""What a model does on the first prompts of a task: every head's attention pattern, and what it would say next.

This is what the report's explorer shows and a circuit's own files lack.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gossamer.attention.function import AttentionCall
from gossamer.attention.passes import Passes, Readout, session
from gossamer.circuits.batch import Batch
from gossamer.errors import GossamerError
from gossamer.files import write_whole
from gossamer.models import Model
from gossamer.tasks.pair import EncodedPair, Prompts

FILE = "explorer.safetensors"
MOST_PROMPTS = 8
BUDGET = 1_500_000  # bytes of patterns; the first prompt is kept whatever it takes
PREDICTIONS = 5

Prediction = tuple[str, float, str]  # token, probability, and "right" or "wrong" if it is one of the answers


@dataclass(frozen=True, eq=False)
class Explored:
    """One prompt. Its tokens as text are what each adds to those before it: together they are the prompt."""

    clean: list[str]
    corrupted: list[str]
    after_clean: list[Prediction]  # most likely first
    after_corrupted: list[Prediction]
    patterns: np.ndarray = field(repr=False)  # (layer, head, n (n + 1) / 2) uint8: `levels` of the lower triangle


def explore(model: Model, prompts: Prompts) -> list[Explored]:
    """The first prompts of a task, as many as fit the budget."""
    found: list[Explored] = []
    spent = 0
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        for row in range(min(MOST_PROMPTS, len(prompts))):
            length = len(prompts.pairs[row])
            spent += model.n_layers * model.n_heads * length * (length + 1) // 2
            if found and spent > BUDGET:
                break
            found.append(explore_one(model, passes, prompts, row))
    return found


def explore_one(model: Model, passes: Passes, prompts: Prompts, row: int) -> Explored:
    pair = prompts.pairs[row]
    batch = Batch.of(prompts, [row], model.device)
    seen = Triangles()
    everything = Readout(batch.lengths - 1)  # the whole vocabulary after the last token
    clean = passes(batch.clean, read=everything, probe=seen)
    corrupted = passes(batch.corrupted, read=everything)
    return Explored(
        clean=decoded(model, pair.clean),
        corrupted=decoded(model, pair.corrupted),
        after_clean=predictions(model, clean, pair.clean, pair),
        after_corrupted=predictions(model, corrupted, pair.corrupted, pair),
        patterns=np.ascontiguousarray(np.stack(seen.found)),
    )


class Triangles:
    """A probe that remembers every head's pattern, in little room."""

    def __init__(self) -> None:
        self.found: list[np.ndarray] = []  # of each layer, (head, n (n + 1) / 2)

    def __call__(self, call: AttentionCall) -> Tensor:
        pattern = call.pattern[0].float().cpu().numpy()  # (head, query, key)
        rows, columns = np.tril_indices(pattern.shape[-1])  # row by row: query 0, then 1, ...
        self.found.append(levels(pattern[:, rows, columns]))
        return call.output


def levels(weights: np.ndarray) -> np.ndarray:
    """Attention weights as one byte each, on a square-root scale: 255 sqrt(w), rounded. 0 is kept for exactly 0, so
    that an edge whose gate is open never looks shut."""
    scaled = np.rint(255 * np.sqrt(np.clip(weights, 0, 1)))
    kept: np.ndarray = np.where(weights > 0, np.maximum(scaled, 1), 0).astype(np.uint8)
    return kept


def decoded(model: Model, tokens: tuple[int, ...]) -> list[str]:
    return [following(model, tokens[:at], token) for at, token in enumerate(tokens)]


def following(model: Model, before: tuple[int, ...], token: int) -> str:
    """What a token adds to a text: some tokenizers drop the space before a token that stands alone."""
    start, whole, alone = (str(model.tokenizer.decode(ids)) for ids in ([*before], [*before, token], [token]))
    return whole.removeprefix(start) if whole.startswith(start) and whole != start else alone


def predictions(model: Model, logits: Tensor, tokens: tuple[int, ...], pair: EncodedPair) -> list[Prediction]:
    top = logits[0].float().softmax(dim=-1).topk(min(PREDICTIONS, logits.shape[-1]))
    kinds = {**dict.fromkeys(pair.wrong, "wrong"), **dict.fromkeys(pair.answers, "right")}
    return [
        (following(model, tokens, token), share, kinds.get(token, ""))
        for token, share in zip(top.indices.tolist(), top.values.tolist())
    ]


def save(found: list[Explored], path: Path) -> None:
    tensors = {f"patterns_{row}": torch.from_numpy(one.patterns) for row, one in enumerate(found)}
    about = [{key: value for key, value in asdict(one).items() if key != "patterns"} for one in found]
    metadata = {"prompts": json.dumps(about)}
    write_whole(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))


def read(path: Path) -> list[Explored]:
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads(file.metadata()["prompts"])
            return [Explored(**one, patterns=file.get_tensor(f"patterns_{row}")) for row, one in enumerate(about)]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise GossamerError(f"{path} can't be read: {error}") from error
