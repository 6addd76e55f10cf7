"""One circuit of a run: found unless it is there already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gossamer.circuits.circuit import SUMMARY
from gossamer.circuits.discover import Progress, circuit
from gossamer.circuits.parts import Part, Parts
from gossamer.circuits.runs import request, run_folder
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

# What a run says while it works: a bar for one job, told its name.
Bar = Callable[[str], AbstractContextManager[Progress]]


def silent(_job: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _stage, _done, _total: None)


@dataclass
class Shared:
    """What the circuits of one model on the same prompts, with the same importance and replacement, have in common:
    the metric of the clean and the corrupted prompts, and every prompt's scores of heads. A circuit of edges gives
    those too, and is best found first."""

    baseline: list[Part] = field(default_factory=list)
    scores: list[Part] = field(default_factory=list)

    def give(self, parts: Parts, settings: dict[str, Any]) -> None:
        """To a circuit that has just begun; it takes no time of its own."""
        stages = {"baseline": self.baseline}
        if settings["units"] == "heads" and settings["ranking"] in ("sentence", "dataset"):
            stages["scores"] = self.scores
        for stage, known in stages.items():
            if not parts[stage]:
                parts.stages[stage] = [{**part, "seconds": torch.zeros(1)} for part in known]

    def take(self, parts: Parts, settings: dict[str, Any]) -> None:
        """From a finished one."""
        self.baseline = parts["baseline"]
        of_heads = "scores" if settings["units"] == "heads" else "heads"
        if settings["ranking"] == "sentence" and not self.scores and all(of_heads in part for part in parts["curve"]):
            for part in parts["curve"]:
                scores = part[of_heads]
                total = scores.double().sum(dim=0, keepdim=True)
                self.scores.append({"rows": part["rows"], "scores": scores, "sum": total})


def save_circuit(
    model: Model,
    prompts: Prompts,
    folder: Path,
    settings: dict[str, Any],
    name: str,
    bar: Bar,
    shared: Shared | None = None,
) -> None:
    """Find the circuit and write it to `folder`; if it was interrupted there, go on."""
    if (folder / SUMMARY).exists():
        return
    shared = shared or Shared()
    with run_folder(folder, request(model, prompts, settings), force=True) as parts:
        shared.give(parts, settings)
        with bar(name) as progress:
            found = circuit(model, prompts, parts=parts, progress=progress, **settings)
        shared.take(parts, settings)
        found.save(folder, figure=False)  # the run has figures of its own
