"""From a model and prompts to a circuit: score, rank, keep k, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.attention.passes import Passes, session
from gossamer.circuits import curve, importance
from gossamer.circuits.activations import REPLACEMENTS, Activations, Record, replacement, summed
from gossamer.circuits.batch import Batch, cut, fitting_size, in_batches
from gossamer.circuits.circuit import Circuit
from gossamer.circuits.parts import Parts
from gossamer.circuits.ranking import RANKINGS, SIGNS, order, random_scores, ranks
from gossamer.circuits.units import UNITS, Unit
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

# What a job says while it works: (stage, done, total).
Progress = Callable[[str, int, int], None]

ROW_TOKENS = 2048  # tokens of a pass in exact patching, where rows are plenty
SAVED_EDGES = 65_536  # of each prompt's ranked edges, so many are kept: a circuit, not a map of everything


class NoEffect(GossamerError):
    """The metric does not move: there is nothing to explain."""


@dataclass(frozen=True)
class Settings:
    """What is asked of a circuit."""

    units: str = "heads"
    ranking: str = "sentence"
    importance: str = "gradient"
    sign: str = "absolute"
    replace: str = "corrupted"
    ig_steps: int = 5
    seed: int = 0
    sizes: str = "every"

    def check(self, prompts: Prompts) -> None:
        choices = {
            "units": tuple(UNITS),
            "ranking": RANKINGS,
            "importance": importance.IMPORTANCES,
            "sign": SIGNS,
            "replace": REPLACEMENTS,
            "sizes": curve.SIZES,
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise GossamerError(f"unknown {name} {value!r}: choose {', '.join(allowed)}")
        if self.ig_steps < 1:
            raise GossamerError(f"{self.ig_steps} IG steps asked for: ask for at least 1")
        if self.units == "edges" and self.ranking == "dataset" and not prompts.shared_positions:
            raise GossamerError(
                "one ranking of edges for all prompts needs prompts that share their positions, and these differ in "
                "template or length: use prompts of one template and length (--same-positions for the built-in tasks), "
                "or rank by sentence"
            )


def circuit(
    model: Model,
    prompts: Prompts,
    *,
    units: str = "heads",
    ranking: str = "sentence",
    importance: str = "gradient",
    sign: str = "absolute",
    replace: str = "corrupted",
    ig_steps: int = 5,
    seed: int = 0,
    sizes: str = "every",
    scores: Tensor | None = None,
    batch: int | None = None,
    parts: Parts | None = None,
    progress: Progress = lambda stage, done, total: None,
    reuse_prefix: bool = True,
) -> Circuit:
    """Rank a model's heads or attention edges on a task, keep the k best for every k, and measure what they explain.

    Args:
        units: "heads" or "edges".
        ranking: "sentence" (within each prompt), "dataset" (one ranking, by the mean score), "random", or
            "given" (by `scores`).
        importance: "gradient", "ig" (gradients along the path from the corrupted prompt), or "exact" (patch each unit).
        sign: "absolute" ranks by |score|, "signed" what helps first.
        replace: what removed units become: "corrupted", "mean" or "zero".
        seed: of the random ranking.
        sizes: the k to measure: "every", or "few" for a curve in a fraction of the time.
        scores: of a given ranking, (layer, head): one that was found elsewhere, on other prompts or in another model.
        batch: prompts at once; by default as many as fit, and fewer when memory runs out.
        parts: finished batches of an interrupted run.
        progress: hears (stage, done, total).
        reuse_prefix: compute the beginning that a clean and a corrupted prompt share only once. The result is the same.

    Raises:
        GossamerError: an unknown choice, or a task on which the explained effect is undefined.
    """
    settings = Settings(units, ranking, importance, sign, replace, ig_steps, seed, sizes)
    settings.check(prompts)
    if (ranking == "given") != (scores is not None):
        raise GossamerError("a given ranking needs scores, and scores are for a given ranking: give both or neither")
    if scores is not None and (units != "heads" or scores.shape != (model.n_layers, model.n_heads)):
        raise GossamerError(
            f"scores of shape {tuple(scores.shape)} given to rank {units}: give heads', "
            f"{(model.n_layers, model.n_heads)}"
        )
    with session(model.hf, model.layers) as passes:
        job = Job(model, prompts, settings, passes, parts or Parts(), batch, progress, reuse_prefix, scores)
        job.baseline()
        if ranking == "dataset":
            job.score_all()
        job.measure_all()
        return job.result()


class Job:
    """One circuit in the making: stages over batches of prompts, each batch a part that is never done twice."""

    def __init__(
        self,
        model: Model,
        prompts: Prompts,
        settings: Settings,
        passes: Passes,
        parts: Parts,
        batch: int | None,
        progress: Progress,
        reuse_prefix: bool,
        given: Tensor | None = None,
    ) -> None:
        self.model, self.prompts, self.settings, self.given = model, prompts, settings, given
        self.passes, self.parts, self.progress = passes, parts, progress
        self.unit: Unit = UNITS[settings.units]
        self.size = batch or fitting_size(model, prompts, patterns=self.unit.patterns)
        total = max(self.total(len(pair)) for pair in prompts.pairs)
        self.ks = curve.sizes(settings.units, total, settings.sizes)
        self.means: list[Tensor] | None = None
        # A mean or a zero differs from the clean value everywhere, so that there is nothing to share.
        self.reuse_prefix = reuse_prefix and model.reuses_prefix and settings.replace == "corrupted"
        self.shrunk = 1.0  # what is left of a batch that was cut for want of memory

    def total(self, length: int) -> int:
        """An upper bound of the units of a prompt (a sliding window leaves fewer edges)."""
        heads = self.model.n_layers * self.model.n_heads
        return heads if self.settings.units == "heads" else heads * length * (length + 1) // 2

    def stage(self, name: str, work: Callable[[Batch], dict[str, Tensor]], steps: int = 1) -> None:
        """Do `work` on every batch that has no part yet; it takes `steps` for each prompt."""
        done = self.parts.done(name)
        left = [row for row in range(len(self.prompts)) if row not in done]
        prefix = self.reuse_prefix and name != "baseline"
        batches = cut(self.prompts, left, self.size, self.model.device, prefix=prefix)
        planned = {row: len(rows) for rows in batches for row in rows}
        self.progress(name, len(done) * steps, len(self.prompts) * steps)

        def on_rows(rows: Sequence[int]) -> dict[str, Tensor]:
            self.shrunk = len(rows) / planned[rows[0]]
            return work(Batch.of(self.prompts, rows, self.model.device))

        started = time.monotonic()
        for rows, part in in_batches(batches, on_rows):
            spent = torch.tensor([time.monotonic() - started])
            self.parts.add(name, {"rows": torch.tensor(list(rows)), "seconds": spent, **part})
            started = time.monotonic()
            self.progress(name, len(self.parts.done(name)) * steps, len(self.prompts) * steps)

    def collect(self, stage: str, name: str) -> Tensor:
        """A value of every prompt, in the order of the prompts."""
        rows = torch.cat([part["rows"] for part in self.parts[stage]])
        return torch.cat([part[name] for part in self.parts[stage]])[rows.argsort()]

    def baseline(self) -> None:
        """How the model does on the clean and the corrupted prompts; the heads' means, if they replace anything."""

        def work(batch: Batch) -> dict[str, Tensor]:
            record = Record(patterns=False) if self.settings.replace == "mean" else None
            with torch.no_grad():
                clean = self.passes(batch.clean, batch.mask, read=batch.read)
                corrupted = self.passes(batch.corrupted, batch.mask, read=batch.read, probe=record)
            part = {
                "clean": batch.metric.values(clean),
                "corrupted": batch.metric.values(corrupted),
                "correct": batch.metric.correct(clean),
            }
            if record is not None:
                part["sum"] = summed(record.seen, batch.lengths)[None]  # (1, layer, head, d_head)
                part["count"] = batch.lengths.sum()[None]
            return part

        self.stage("baseline", work)
        for name in ("clean", "corrupted"):
            if not torch.isfinite(self.collect("baseline", name)).all():
                raise GossamerError(
                    f"the metric of some {name} prompts is NaN or infinite: the model's logits are broken"
                )
        check_effect(self.collect("baseline", "clean"), self.collect("baseline", "corrupted"), "corrupted")
        if self.settings.replace == "mean":
            parts = self.parts["baseline"]
            total = torch.stack([part["sum"][0] for part in parts]).sum(dim=0)  # (layer, head, d_head)
            self.means = list(total / torch.stack([part["count"] for part in parts]).sum())

    def shortened(self, batch: Batch) -> Batch:
        return batch.after_prefix(self.passes) if self.reuse_prefix else batch

    def instead(self, batch: Batch) -> Activations:
        record = Record(patterns=self.unit.patterns)
        with torch.no_grad():
            self.passes(batch.corrupted, batch.mask, read=batch.read, probe=record, prefix=batch.prefix)
        return replacement(self.settings.replace, record.seen, self.means)

    def scores(self, batch: Batch, instead: Activations) -> Tensor:
        """The importance of every unit, (prompt, layer, *unit)."""
        kind, unit = self.settings.importance, self.unit
        if kind == "gradient":
            return importance.gradient(self.passes, batch, unit, instead)
        if kind == "ig":
            return importance.integrated(self.passes, batch, unit, instead, steps=self.settings.ig_steps)
        # A batch that was halved for want of memory takes smaller passes too.
        rows = max(1, int(ROW_TOKENS * self.shrunk) // batch.clean.shape[1])

        def tick(done: int, total: int) -> None:
            self.progress("exact patching of a batch", done, total)

        return importance.exact(self.passes, batch, unit, instead, rows_per_pass=rows, tick=tick)

    def score_all(self) -> None:
        """The scores behind one ranking for all prompts."""

        def work(batch: Batch) -> dict[str, Tensor]:
            batch = self.shortened(batch)
            scores = self.scores(batch, self.instead(batch))
            # Edge maps are summed at once: there is room for those of a batch, not of a data set.
            part = {"sum": scores.cpu().double().sum(dim=0, keepdim=True)}
            return part if self.unit.patterns else part | {"scores": scores}

        self.stage("scores", work)

    def measure_all(self) -> None:
        """The curve of every prompt, by its own ranking or by that of the data set."""
        mean: Tensor | None = None
        if self.given is not None:
            mean = self.given.float().to(self.model.device)[None]
        elif self.settings.ranking == "dataset":
            total = torch.stack([part["sum"] for part in self.parts["scores"]]).sum(dim=0)
            mean = (total / len(self.prompts)).float().to(self.model.device)
        known = (
            self.collect("scores", "scores") if self.settings.ranking == "sentence" and self.parts["scores"] else None
        )

        def work(batch: Batch) -> dict[str, Tensor]:
            batch = self.shortened(batch)
            instead = self.instead(batch)
            valid = self.unit.valid(instead, batch)
            if self.settings.ranking == "random":
                scores = random_scores(batch.rows, valid, self.settings.seed)
            elif mean is not None:
                scores = mean.expand_as(valid)
            elif known is not None:
                scores = known[batch.rows].to(self.model.device)
            else:
                scores = self.scores(batch, instead)
            sign = "signed" if self.settings.ranking == "random" else self.settings.sign
            ordered = order(scores, valid, sign)
            ranked = ranks(ordered, valid.shape[1:])
            done = len(self.parts.done("curve")) * len(self.ks)

            def tick(passes: int) -> None:
                nonlocal done
                done += passes * len(batch.rows)
                self.progress("curve", done, len(self.prompts) * len(self.ks))

            values = curve.measure(self.passes, batch, self.unit, ranked, instead, self.ks, tick)
            part = {"metric": values, "total": valid.flatten(1).sum(1)}
            return part | self.saved(scores, ordered, valid)

        self.stage("curve", work, steps=len(self.ks))

    def saved(self, scores: Tensor, ordered: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """What is kept of a batch's ranking: every head's score, or the first edges with theirs."""
        if not self.unit.patterns:
            return {"scores": scores}
        top = ordered[:, : min(SAVED_EDGES, int(valid.flatten(1).sum(1).max()))]
        index = torch.stack(torch.unravel_index(top, scores.shape[1:]), dim=-1).to(torch.int16)
        exists = valid.flatten(1).gather(1, top)
        index[~exists] = -1
        found = {"index": index, "scores": scores.flatten(1).gather(1, top).masked_fill(~exists, torch.nan)}
        if self.settings.ranking == "sentence" and self.settings.importance != "exact":
            # To first order a head is the sum of its edges.
            found["heads"] = scores.sum(dim=-1).cpu().double().sum(dim=-1).float()
        return found

    def result(self) -> Circuit:
        metric = self.collect("curve", "metric").double().numpy()
        clean, corrupted = (self.collect("baseline", name).double().numpy() for name in ("clean", "corrupted"))
        none, everything = metric[:, 0], metric[:, -1]
        check_effect(torch.from_numpy(clean), torch.from_numpy(none), f"none-kept ({self.settings.replace})")
        checks = {"all_kept_minus_clean": float(np.abs(everything - clean).max())}
        if self.settings.replace == "corrupted":
            checks["none_kept_minus_corrupted"] = float(np.abs(none - corrupted).max())
        ends = [everything.mean() - clean.mean()]
        if self.settings.replace == "corrupted":
            ends.append(none.mean() - corrupted.mean())
        error = float(np.abs(ends).max() / abs(clean.mean() - none.mean()))  # in explained effect
        allowed = 0.005 if self.model.hf.dtype in (torch.float32, torch.float64) else 0.1
        if error > allowed:
            raise GossamerError(
                "keeping everything should give the clean metric and keeping nothing the corrupted one, but the "
                f"explained effect is off by {error:.2g}: the precision is too low for this task; try dtype float32"
            )
        return Circuit(
            model=self.model.describe(),
            prompts=self.prompts,
            settings=asdict(self.settings),
            ks=self.ks,
            metric=metric,
            clean=clean,
            corrupted=corrupted,
            correct=self.collect("baseline", "correct").numpy(),
            total=self.collect("curve", "total").numpy(),
            rankings=self.rankings(),
            checks=checks,
            seconds=sum(part["seconds"].item() for stage in self.parts.stages.values() for part in stage),
        )

    def rankings(self) -> dict[str, Tensor]:
        """The scores file: for heads `scores` (prompt, layer, head); for edges, best first, `index` (prompt, n, 4) as
        layer, head, query, key and `scores` (prompt, n), with -1 and NaN after a prompt's last edge."""
        if not self.unit.patterns:
            stage = "scores" if self.settings.ranking == "dataset" else "curve"
            return {"scores": self.collect(stage, "scores")}
        widest = max(part["index"].shape[1] for part in self.parts["curve"])
        for part in self.parts["curve"]:
            missing = widest - part["index"].shape[1]
            part["index"] = torch.nn.functional.pad(part["index"], (0, 0, 0, missing), value=-1)
            part["scores"] = torch.nn.functional.pad(part["scores"], (0, missing), value=torch.nan)
        return {name: self.collect("curve", name) for name in ("index", "scores")}


def check_effect(clean: Tensor, bottom: Tensor, what: str) -> None:
    """Refuse a task whose metric doesn't move: the explained effect would be 0 / 0."""
    difference = (clean.double() - bottom.double()).mean().item()
    scale = max(clean.abs().mean().item(), bottom.abs().mean().item(), 1e-6)
    if abs(difference) < 1e-4 * scale:
        raise NoEffect(
            f"the clean and the {what} metric don't differ (means {clean.mean().item():.4g} and "
            f"{bottom.mean().item():.4g}): the explained effect is undefined; use another task or model"
        )


def cost_of_exact(model: Model, prompts: Prompts, units: str) -> tuple[int, float]:
    """What exact importance takes at most: how many patches, and about how many seconds, from the time of one pass.

    The edges of queries that the clean and the corrupted prompt share need no patch, so it is often less.
    """
    heads = model.n_layers * model.n_heads
    per_prompt = [1 if units == "heads" else len(pair) * (len(pair) + 1) // 2 for pair in prompts.pairs]
    longest_first = sorted(range(len(prompts)), key=lambda row: -len(prompts.pairs[row]))
    rows = longest_first[: max(1, ROW_TOKENS // len(prompts.pairs[longest_first[0]]))]
    batch = Batch.of(prompts, rows, model.device)
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        passes(batch.clean, batch.mask, read=batch.read)  # the first one warms up
        started = time.monotonic()
        passes(batch.clean, batch.mask, read=batch.read).sum().item()
        a_row = (time.monotonic() - started) / len(rows)
    patches = heads * sum(per_prompt)
    return patches, patches * a_row / 2  # a pass starts at the patched layer: half of them on average
