"""What is left without some heads: completeness and minimality of a set of heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gossamer.attention.passes import session
from gossamer.circuits.activations import Activations, Record, replacement, summed
from gossamer.circuits.batch import Batch, cut, fitting_size, in_batches
from gossamer.circuits.units import UNITS
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

Head = tuple[int, int]  # layer, head


def keeping(model: Model, prompts: Prompts, sets: Sequence[Sequence[Head]], replace: str = "corrupted") -> np.ndarray:
    """The metric with only these heads kept and all others replaced as in `gossamer.circuit`, (prompt, set)."""
    ranks = torch.ones(len(sets), model.n_layers, model.n_heads, dtype=torch.int32)
    for number, heads in enumerate(sets):
        for layer, head in heads:
            ranks[number, layer, head] = 0  # kept, as k = 1
    values = torch.zeros(len(prompts), len(sets), dtype=torch.float64)
    unit = UNITS["heads"]
    prefix = model.reuses_prefix and replace == "corrupted"
    means: list[Tensor] = []

    def corrupted(batch: Batch) -> Activations:
        record = Record(patterns=False)
        passes(batch.corrupted, batch.mask, read=batch.read, probe=record, prefix=batch.prefix)
        return record.seen

    def add_up(rows: Sequence[int]) -> tuple[Tensor, int]:
        batch = Batch.of(prompts, rows, model.device)
        return summed(corrupted(batch), batch.lengths), int(batch.lengths.sum())

    def work(rows: Sequence[int]) -> Tensor:
        batch = Batch.of(prompts, rows, model.device)
        if prefix:
            batch = batch.after_prefix(passes)
        instead = replacement(replace, corrupted(batch), means)
        found = []
        for kept in ranks.to(model.device):
            probe = unit.keep(kept.expand(len(rows), -1, -1), 1, instead)
            logits = passes(batch.clean, batch.mask, read=batch.read, probe=probe, prefix=batch.prefix)
            found.append(batch.metric.values(logits))
        return torch.stack(found, dim=1).double().cpu()

    with torch.no_grad(), session(model.hf, model.layers) as passes:
        size = fitting_size(model, prompts, patterns=False)
        batches = cut(prompts, range(len(prompts)), size, model.device, prefix=prefix)
        if replace == "mean":
            sums, counts = zip(*(part for _, part in in_batches(batches, add_up)), strict=True)
            means = list(torch.stack(sums).sum(dim=0) / sum(counts))
        for rows, found in in_batches(batches, work):
            values[list(rows)] = found
    return values.numpy()


def explained(model: Model, prompts: Prompts, sets: Sequence[Sequence[Head]], replace: str = "corrupted") -> np.ndarray:
    """The explained effect of each set of heads, (set,)."""
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    means = keeping(model, prompts, [[], every, *sets], replace).mean(axis=0)
    effect: np.ndarray = (means[2:] - means[0]) / (means[1] - means[0])
    return effect


def completeness_and_minimality(
    model: Model, prompts: Prompts, heads: Sequence[Head], replace: str = "corrupted"
) -> dict[str, object]:
    """A set of heads kept; everything else kept and the set removed; and the set without each of its heads in turn.

    A complete set leaves nothing behind (`without_it` near 0); in a minimal one every head is missed (`lost` above 0).
    """
    chosen = set(heads)
    every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    rest = [head for head in every if head not in chosen]
    fewer = [[other for other in heads if other != head] for head in heads]
    kept, without, *reduced = explained(model, prompts, [list(heads), rest, *fewer], replace).tolist()
    lost = {f"L{layer}H{head}": kept - value for (layer, head), value in zip(heads, reduced, strict=True)}
    return {
        "heads": len(heads),
        "kept": kept,
        "without_it": without,
        "lost": lost,
        "idle": [name for name, loss in lost.items() if loss < 0.01],
    }
