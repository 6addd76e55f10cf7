"""A circuit read back from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gossamer.circuits.circuit import SUMMARY
from gossamer.comparison.bootstrap import Curve
from gossamer.errors import GossamerError

NEEDED = ("model", "task", "units", "sign", "clean", "accuracy", "effect", "warnings", "units_total", "k90", "curve")
PROMPT = ("clean", "corrupted", "answers", "wrong", "clean_metric")
REPAIR = "delete that folder and give the command of the run again"


@dataclass(frozen=True, eq=False)
class Stored:
    folder: Path
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Stored:
        try:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            missing = [key for key in NEEDED if key not in summary]
        except (OSError, ValueError, TypeError) as error:
            raise GossamerError(f"{folder} holds no finished circuit: {error}; {REPAIR}") from error
        if missing:
            raise GossamerError(f"{folder / SUMMARY} has no {missing[0]!r}; {REPAIR}")
        return cls(folder, summary)

    @property
    def units(self) -> str:
        return str(self.summary["units"])

    @property
    def ks(self) -> list[int]:
        return list(self.summary["curve"]["k"])

    @property
    def effect(self) -> np.ndarray:
        """The curve, (k,)"""
        return np.array(self.summary["curve"]["explained_effect"])

    @property
    def k90(self) -> int | None:
        k90: int | None = self.summary["k90"]
        return k90

    @property
    def total(self) -> int:
        return int(self.summary["units_total"][1])

    @cached_property
    def kept(self) -> np.ndarray:
        """The metric with the k best kept, (prompt, k)"""
        try:
            frame = pd.read_parquet(self.folder / "curve.parquet", columns=["prompt", "k", "metric"])
            return frame["metric"].to_numpy().reshape(-1, len(self.ks))
        except (OSError, ValueError, KeyError) as error:
            raise GossamerError(f"{self.folder}: curve.parquet can't be read: {error}; {REPAIR}") from error

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "prompts.jsonl").read_text(encoding="utf-8").split("\n")  # a prompt may hold others
            found = [json.loads(line) for line in lines if line]
            missing = [key for prompt in found for key in PROMPT if key not in prompt]
        except (OSError, ValueError, TypeError) as error:
            raise GossamerError(f"{self.folder}: prompts.jsonl can't be read: {error}; {REPAIR}") from error
        if missing:
            raise GossamerError(f"{self.folder}: a prompt in prompts.jsonl has no {missing[0]!r}; {REPAIR}")
        return found

    @cached_property
    def clean(self) -> np.ndarray:
        """(prompt,)"""
        return np.array([prompt["clean_metric"] for prompt in self.prompts])

    @property
    def curve(self) -> Curve:
        if len(self.kept) != len(self.clean):
            counts = f"{len(self.kept)} prompts in curve.parquet, {len(self.clean)} in prompts.jsonl"
            raise GossamerError(f"{self.folder}: {counts}; {REPAIR}")
        return Curve(self.ks, self.kept, self.clean, log=self.units == "edges")

    def scores(self) -> dict[str, torch.Tensor]:
        """The scores file: see `Job.rankings`."""
        try:
            return load_file(self.folder / "scores.safetensors")
        except (OSError, SafetensorError) as error:
            raise GossamerError(f"{self.folder}: scores.safetensors can't be read: {error}; {REPAIR}") from error

    def head_order(self) -> torch.Tensor:
        """A dataset ranking of heads, best first: layer * heads + head."""
        scores = self.scores()["scores"].double().mean(dim=0)  # (layer, head)
        if self.summary["sign"] == "absolute":
            scores = scores.abs()
        return scores.flatten().argsort(descending=True, stable=True)

    def best_heads(self, k: int) -> list[tuple[int, int]]:
        """The k first heads of a dataset ranking, in layer-then-head order."""
        per_layer = self.summary["model"]["heads_per_layer"]
        return [divmod(head, per_layer) for head in sorted(self.head_order()[:k].tolist())]
