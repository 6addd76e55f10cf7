"""The loop: draw the gates, step on the Lagrangian, evaluate with decided gates, keep the sparsest feasible weights."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from gossamer.errors import GossamerError
from gossamer.files import write_text
from gossamer.training.blocks import Blocks
from gossamer.training.checkpoint import Checkpoints, unflatten
from gossamer.training.constraint import Constraint
from gossamer.training.evaluate import Edges, decided
from gossamer.training.losses import ALL, token_losses
from gossamer.training.objective import Outcome, compared, computing, objective, sampling
from gossamer.training.settings import Settings
from gossamer.training.student import Student, make_optimiser

LOG = "log.jsonl"
MEASURE = 5  # steps between measurements of the excess

Report = Callable[[int, dict[str, float]], None]


class Diverged(GossamerError):
    """The loss is not a number any more. The last good state stays, for another try."""

    exit_code = 1


@dataclass
class Progress:
    """All that changes during a run but for the weights and the optimiser."""

    step: int = 0  # steps done
    share: float = 1.0  # expected share of open edges, at the last step
    best: dict[str, Any] = field(default_factory=dict)  # name, step, loss, edges
    lengths: list[int] = field(default_factory=list)  # steps asked for: at first, and when it was made longer


class Trainer:
    def __init__(
        self,
        student: Student,
        blocks: Blocks,
        settings: Settings,
        *,
        accelerator: Accelerator,
        out: Path,
        tau: float,
        base_loss: float,
        lr: float,
        report: Report,
    ) -> None:
        self.student, self.blocks, self.settings, self.out = student, blocks, settings, out
        self.accelerator, self.report = accelerator, report
        self.tau, self.base_loss, self.lr = tau, base_loss, lr
        self.constraint = Constraint(margin=tau - base_loss, rate=settings.dual_rate)
        self.progress = Progress(lengths=[settings.steps])
        self.checkpoints = Checkpoints(out)
        self.run, self.optimiser = accelerator.prepare(
            student.hf, make_optimiser(student, settings, lr, bias_lr=settings.bias_lr)
        )
        self.log: list[dict[str, Any]] = []
        processes, index = accelerator.num_processes, accelerator.process_index
        self.part = settings.batch // processes // settings.accumulate  # blocks at once
        self.first = index * settings.batch // processes  # of the batch's blocks, the first that is ours

    def restore(self) -> None:
        """Go on from the last checkpoint."""
        weights, optimiser, state = self.checkpoints.last()
        try:
            self.progress, self.constraint = Progress(**state["progress"]), Constraint(**state["constraint"])
        except TypeError as error:
            raise GossamerError(
                f"the checkpoints in {self.out} are of another version of gossamer ({error}): --force begins anew"
            ) from error
        if self.settings.steps not in self.progress.lengths[-1:]:
            self.progress.lengths.append(self.settings.steps)
        if best := self.progress.best:
            self.checkpoints.check_best(best["name"])
        self.student.load(weights)
        unflatten(self.optimiser.optimizer, optimiser, state["optimiser"])
        self.blocks.restore(state["blocks"])
        if (self.out / LOG).exists():
            try:
                rows = [json.loads(line) for line in (self.out / LOG).read_text(encoding="utf-8").splitlines()]
            except ValueError as error:
                raise GossamerError(f"{self.out / LOG} can't be read ({error}): --force begins anew") from error
            self.log = [row for row in rows if row["step"] <= self.progress.step]

    def train(self) -> None:
        if not self.log:
            self.evaluate()
        while self.progress.step < self.settings.steps:
            self.step()
            if self.progress.step % self.settings.every == 0 or self.progress.step == self.settings.steps:
                self.evaluate()

    def step(self) -> None:
        started = time.perf_counter()
        settings, step = self.settings, self.progress.step
        factor = settings.lr_factor(step)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak_lr"] * factor
        batch = self.blocks.take(settings.batch)
        measure = step % MEASURE == 0
        tokens = ALL if measure else settings.predicted(step, batch.shape[1] - 1)
        self.constraint.slack = settings.slack_factor(step)
        loss_weight, share_weight = self.constraint.weights(self.progress.share) if settings.penalty else (1.0, 0.0)
        sums = torch.zeros(4, dtype=torch.float64)  # loss, share, excess, distance of the states
        self.optimiser.zero_grad()
        for part in range(settings.accumulate):
            first = self.first + part * self.part
            ids = batch[first : first + self.part].to(self.accelerator.device)
            gates = sampling(settings, settings.seed * 1_000_003 + step, first)
            last = part == settings.accumulate - 1
            with self.accelerator.no_sync(self.run) if not last else torch.enable_grad():
                outcome = objective(self.student, ids, settings, gates, compare=measure, tokens=tokens, run=self.run)
                share = outcome.loss.new_ones(()) if gates is None else torch.stack(list(gates.shares.values())).mean()
                self.accelerator.backward((loss_weight * outcome.loss + share_weight * share) / settings.accumulate)
            excess = self.excess(ids, outcome) if measure else torch.zeros(())
            told = outcome.losses.kl if settings.distill else outcome.losses.ce
            sums += torch.stack([told, share, excess.to(told), outcome.distance]).detach().double().cpu()
        norm = float(self.accelerator.clip_grad_norm_(self.student.trainable().values(), settings.clip))
        loss_value, share_value, excess_value, distance = self.mean(sums / settings.accumulate)
        if not all(map(math.isfinite, (loss_value, share_value, excess_value, distance, norm))):
            kept = self.checkpoints.steps()
            raise Diverged(
                f"the loss is {loss_value} and its gradient {norm} at step {step + 1}; the last good state is "
                f"{kept[-1] if kept else 'the start'}: try a lower --lr than {self.lr:g}"
            )
        if measure:
            self.constraint.measured(excess_value, MEASURE)
        self.optimiser.step()
        self.progress.step += 1
        self.progress.share = share_value
        seconds = time.perf_counter() - started
        self.note(
            {
                "kl" if settings.distill else "loss": loss_value,
                **({"states": distance} if settings.match else {}),
                "expected_edges": share_value,
                "excess": self.constraint.excess or 0.0,
                "allowed": self.constraint.allowed,
                "lambda": self.constraint.multiplier(share_value),
                "mu": self.constraint.mu,
                "lr": self.lr * factor,
                "gradient": norm,
                "seconds": seconds,
                "tokens_per_second": batch.numel() / seconds,
            }
        )

    def excess(self, ids: Tensor, outcome: Outcome) -> Tensor:
        """Of decided gates over the base model, on blocks before they are trained on.

        On text of its own the KL is that, with less noise. On other text it may be far more: a model can leave its base
        where that predicts badly, at no loss (SmolLM2-135M on Wikipedia: a KL of 0.24 at 0.06 nats).
        """
        losses = outcome.losses
        if self.settings.noise:
            with torch.no_grad(), computing(self.settings, ids.device):
                hidden = decided(self.student.read, ids)[0]
                losses = compared(self.student, ids, hidden, self.settings, outcome.base_hidden)
        return losses.kl if self.settings.distill and self.blocks.own else losses.ce - losses.base_ce

    def mean(self, values: Tensor) -> list[float]:
        """Over processes."""
        reduced: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), "mean")
        return reduced.tolist()

    def evaluate(self) -> None:
        """Held-out loss and edges with decided gates; a checkpoint; and the best so far."""
        loss, edges = held_out(self.student, self.blocks.held_out, self.part)
        self.constraint.held_out(loss - self.base_loss)
        step, best = self.progress.step, self.progress.best
        feasible = loss <= self.tau
        better = feasible and (not best or edges.share < best["edges"])
        if step == 0:
            self.progress.share = edges.share
        row = {"held_out_loss": loss, "edges": edges.share, "feasible": feasible}
        if better or not self.settings.penalty:  # without a penalty there is nothing to choose by: the last
            name = f"best-{step:06}"
            if self.accelerator.is_main_process:
                self.checkpoints.save_best(name, self.student.weights())
            self.progress.best = {"name": name, "step": step, "loss": loss, "edges": edges.share}
        self.note(row)
        if self.accelerator.is_main_process:
            write_text(self.out / LOG, "".join(json.dumps(row) + "\n" for row in self.log))
            state = {
                "lr": self.lr,
                "progress": vars(self.progress),
                "constraint": self.constraint.state(),
                "blocks": self.blocks.state(),
            }
            self.checkpoints.save(step, self.student.weights(), self.optimiser.optimizer, state)
        self.accelerator.wait_for_everyone()

    def note(self, values: dict[str, Any]) -> None:
        self.log.append({"step": self.progress.step, **values})
        self.accelerator.log(values, step=self.progress.step)
        self.report(self.progress.step, values)


def held_out(student: Student, blocks: Tensor, batch: int) -> tuple[float, Edges]:
    """Loss and edges with decided gates."""
    total, edges = 0.0, None
    for start in range(0, len(blocks), batch):
        ids = blocks[start : start + batch].to(student.hf.device)
        hidden, more = decided(student.read, ids)
        edges = more if edges is None else edges + more
        with torch.no_grad():
            total += float(token_losses(ids, hidden, student.read).ce) * len(ids)
    assert edges is not None
    return total / len(blocks), edges


def base_loss(student: Student, blocks: Tensor, batch: int) -> float:
    """The base model's loss, every gate open."""
    total = 0.0
    for start in range(0, len(blocks), batch):
        ids = blocks[start : start + batch].to(student.hf.device)
        with student.base() as base:
            total += float(token_losses(ids, base(ids), base).ce) * len(ids)
    return total / len(blocks)
