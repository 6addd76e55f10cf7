"""How much each unit matters: exactly, or to first order for all of them at once.

Every importance is M(clean) - M(clean with the unit replaced), or an estimate of it: positive where the unit helps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.attention.function import AttentionCall, Probe
from gossamer.attention.passes import Passes, Readout
from gossamer.circuits.activations import Activations, Record
from gossamer.circuits.batch import Batch
from gossamer.circuits.units import Unit

IMPORTANCES = ("gradient", "exact", "ig")


def gradient(passes: Passes, batch: Batch, unit: Unit, instead: Activations) -> Tensor:
    """(z_clean - z_replaced) . dM/dz at the clean prompt: one pass with its backward, for all units of all prompts."""
    clean, slopes = differentiate(passes, batch, patterns=unit.patterns)
    return combine(unit, clean, instead, slopes)


def integrated(passes: Passes, batch: Batch, unit: Unit, instead: Activations, *, steps: int) -> Tensor:
    """The same with dM/dz averaged at `steps` midpoints between the corrupted and the clean embeddings (EAP-IG)."""
    record = Record(patterns=unit.patterns)
    with torch.no_grad():
        passes(batch.clean, batch.mask, read=batch.read, probe=record, prefix=batch.prefix)
        embed = passes.hf.get_input_embeddings()
        start, end = embed(batch.corrupted), embed(batch.clean)
    slopes: list[Tensor] = []
    for step in range(steps):
        _, more = differentiate(passes, batch, embeddings=start + (end - start) * ((step + 0.5) / steps))
        slopes = [a + b for a, b in zip(slopes, more, strict=True)] if slopes else more
    return combine(unit, record.seen, instead, [slope / steps for slope in slopes])


def differentiate(
    passes: Passes, batch: Batch, *, patterns: bool = False, embeddings: Tensor | None = None
) -> tuple[Activations, list[Tensor]]:
    """A pass of the clean prompts, and dM/dz of every layer."""
    record = Record(patterns=patterns, gradient=True)
    with torch.enable_grad():
        logits = passes(
            batch.clean, batch.mask, read=batch.read, probe=record, embeddings=embeddings, prefix=batch.prefix
        )
        # Prompts don't touch each other, so the gradient of the sum holds each prompt's own.
        slopes = torch.autograd.grad(batch.metric.values(logits).sum(), record.seen.z)
    record.seen.z = [z.detach() for z in record.seen.z]
    return record.seen, list(slopes)


def combine(unit: Unit, clean: Activations, instead: Activations, slopes: list[Tensor]) -> Tensor:
    """Scores of all units, (prompt, layer, *unit)."""
    with torch.no_grad():
        scores = [unit.scores(layer, clean, instead, slope) for layer, slope in enumerate(slopes)]
        return torch.stack([score.to(scores[0].device) for score in scores], dim=1)


def exact(
    passes: Passes,
    batch: Batch,
    unit: Unit,
    instead: Activations,
    *,
    rows_per_pass: int,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Patch one unit at a time. Each pass starts at the patched layer, holds many (prompt, unit) rows, and reads only
    the answers' logits. `tick` hears how many rows are done, and of how many."""
    record = Record(patterns=unit.patterns)
    residual: list[Tensor] = []
    with torch.no_grad():
        logits = passes(batch.clean, batch.mask, read=batch.read, probe=record, capture=residual, prefix=batch.prefix)
        target = batch.metric.values(logits)
        valid = unit.patchable(unit.valid(record.seen, batch), batch)
        scores = torch.zeros(valid.shape, dtype=target.dtype, device=valid.device)
        done, total = 0, int(valid.sum())
        for layer in range(len(passes.layers)):
            for index in valid[:, layer].nonzero().split(rows_per_pass):  # (row, 1 + unit dims)
                prompt = index[:, 0]
                z = unit.patched(layer, record.seen, instead, index.to(record.seen.z[layer].device))
                tokens = batch.read.tokens
                logits = passes(
                    batch.clean[prompt],
                    None if batch.mask is None else batch.mask[prompt],
                    read=Readout(batch.read.positions[prompt], None if tokens is None else tokens[prompt]),
                    probe=override(layer, z),
                    start=(layer, residual[layer - 1][prompt.to(residual[layer - 1].device)]) if layer else None,
                    prefix=None if batch.prefix is None else batch.prefix[prompt],
                )
                effect = target[prompt] - batch.metric[prompt].values(logits)
                scores[(prompt, torch.full_like(prompt, layer), *index[:, 1:].unbind(-1))] = effect.to(scores.device)
                done += len(index)
                tick(done, total)
    return scores


def override(layer: int, z: Tensor) -> Probe:
    def probe(call: AttentionCall) -> Tensor:
        return z if call.layer == layer else call.output

    return probe
