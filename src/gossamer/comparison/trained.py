"""How the sparse models of a run were trained, copied into the run so that its figures need nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError
from gossamer.files import write_text
from gossamer.models import find_folder
from gossamer.training.folder import RESULT
from gossamer.training.train import LOG

FILE = "training.json"


@dataclass(frozen=True, eq=False)
class Training:
    """A post-training run: its bound, and where it stood at every evaluation."""

    name: str
    base: str
    tau: float
    base_loss: float
    kept_step: int
    evaluations: list[dict[str, Any]]
    evaluation: dict[str, Any]  # of the model as written
    base_weights: str | None = None  # the base model's fingerprint

    @property
    def doubt(self) -> str:
        """Why its circuits are not those of a sparse model, or ""."""
        if self.kept_step > 0 or self.evaluations[-1]["step"] == 0:
            return ""
        return f"its training never met the bound: compared is its start, with {self.evaluation['edges']:.1%} of edges"


def copy_training(models: Sequence[str], run: Path) -> None:
    """Those of `models` that tell how they were trained, into RUN/training.json."""
    found = [asdict(training) for name in models if (training := training_of(name)) is not None]
    write_text(run / FILE, json.dumps(found, indent=2) + "\n")


def training_of(name: str) -> Training | None:
    folder = find_folder(name)
    if folder is None:
        return None
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
        return Training(
            name=name,
            base=result["model"]["name"],
            tau=result["tau"],
            base_loss=result["base_loss"],
            kept_step=result["kept_step"],
            evaluations=[row for row in rows if "held_out_loss" in row],
            evaluation=result["evaluation"],
            base_weights=result["model"]["weights"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not made by `gossamer sparsify`, or only in part: the run does without


def read_training(run: Path) -> list[Training]:
    if not (run / FILE).exists():
        return []
    try:
        return [Training(**entry) for entry in json.loads((run / FILE).read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise GossamerError(f"{run / FILE} can't be read: {error}") from error
