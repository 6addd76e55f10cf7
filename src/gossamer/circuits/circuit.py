"""A measured circuit, and the files it is kept in."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.torch import save_file
from torch import Tensor

from gossamer.circuits.curve import explained_effect, size_at
from gossamer.figures.curves import draw_curves
from gossamer.figures.style import save
from gossamer.files import write_whole
from gossamer.tasks.metric import DEFINITIONS
from gossamer.tasks.pair import Prompts

PACKAGES = ("gossamer", "torch", "transformers", "tokenizers", "safetensors", "numpy")
SUMMARY = "circuit.json"
FILES = ("curve.parquet", "scores.safetensors", "prompts.jsonl", "curve.png", SUMMARY)


@dataclass(frozen=True, eq=False)
class Circuit:
    """The curve of one model on one task, and the ranking behind it."""

    model: dict[str, Any]
    prompts: Prompts
    settings: dict[str, Any]
    ks: list[int]
    metric: np.ndarray  # (prompt, k), the metric with the k best units kept
    clean: np.ndarray  # (prompt,)
    corrupted: np.ndarray  # (prompt,)
    correct: np.ndarray  # (prompt,) bool, the clean prompt answered right
    total: np.ndarray  # (prompt,), how many units there are
    rankings: dict[str, Tensor]  # the scores; see `Job.rankings`
    checks: dict[str, float]
    seconds: float

    @property
    def explained_effect(self) -> np.ndarray:
        """The curve, (k,): a ratio of means over prompts, 0 with none kept and 1 with all."""
        return explained_effect(self.metric, self.clean, self.metric[:, 0])

    def size_at(self, level: float = 0.9) -> int | None:
        """How many units explain `level` of the effect; None if no measured size does."""
        return size_at(self.ks, self.explained_effect, level, log=self.settings["units"] == "edges")

    @property
    def k90(self) -> int | None:
        return self.size_at(0.9)

    @property
    def effect(self) -> tuple[float, float]:
        """What there is to explain, the mean of M(clean) - M(none kept) over prompts, and its standard error."""
        differences = self.clean - self.metric[:, 0]
        error = differences.std(ddof=1) / len(differences) ** 0.5 if len(differences) > 1 else math.nan
        return float(differences.mean()), float(error)

    def warnings(self) -> list[str]:
        """Reasons to doubt that there is a circuit to find here."""
        found = []
        mean, error = self.effect
        if len(self.clean) == 1:
            found.append("there is one prompt: nothing says how far the numbers hang on it")
        if self.correct.mean() < 0.5:
            found.append(f"the model answers only {self.correct.mean():.0%} right: it can't do this task")
        if mean < 0:
            found.append(f"the clean prompts score {-mean:.3g} lower than with nothing kept: the effect is reversed")
        elif mean < 2 * error:
            found.append(f"the effect to explain is {mean:.3g} with a standard error of {error:.3g}: it may be chance")
        return found

    def frame(self) -> pd.DataFrame:
        """The curve of every prompt as a tidy table: prompt, k, metric, explained_effect."""
        n, sizes = self.metric.shape
        none = self.metric[:, :1]
        with np.errstate(divide="ignore", invalid="ignore"):
            effect = (self.metric - none) / (self.clean[:, None] - none)
        return pd.DataFrame(
            {
                "prompt": np.repeat(np.arange(n), sizes),
                "k": np.tile(self.ks, n),
                "metric": self.metric.ravel(),
                "explained_effect": effect.ravel(),
            }
        )

    def summary(self) -> dict[str, Any]:
        """Everything that was asked, what came out, and which versions ran."""
        prompts, effect = self.prompts, self.explained_effect
        return {
            "model": self.model,
            "task": {
                "name": prompts.task,
                "metric": prompts.metric,
                "metric_definition": DEFINITIONS[prompts.metric],
                "prompts": len(prompts),
                "seed": prompts.seed,
                "dropped": prompts.dropped,
                "tokens": [min(len(p) for p in prompts.pairs), max(len(p) for p in prompts.pairs)],
            },
            **self.deciding_settings(),
            "accuracy": float(self.correct.mean()),
            "clean": float(self.clean.mean()),
            "corrupted": float(self.corrupted.mean()),
            "none_kept": float(self.metric[:, 0].mean()),
            "effect": self.effect[0],
            "effect_standard_error": None if math.isnan(self.effect[1]) else self.effect[1],
            "warnings": self.warnings(),
            "units_total": [int(self.total.min()), int(self.total.max())],
            "k90": self.k90,
            "curve": {
                "k": self.ks,
                "metric": self.metric.mean(axis=0).tolist(),
                "explained_effect": effect.tolist(),
            },
            "checks": self.checks,
            "seconds": round(self.seconds, 2),
            "versions": {
                "python": platform.python_version(),
                **{package: importlib.metadata.version(package) for package in PACKAGES},
            },
        }

    def deciding_settings(self) -> dict[str, Any]:
        """The settings, null where they had no say in the result."""
        silent = set()
        if self.settings["ranking"] in ("random", "given"):
            silent |= {"importance", "ig_steps"}
        if self.settings["ranking"] == "random":
            silent.add("sign")
        if self.settings["importance"] != "ig":
            silent.add("ig_steps")
        return {name: None if name in silent else value for name, value in self.settings.items()}

    def save(self, folder: Path, *, figure: bool = True) -> None:
        """Write curve.parquet, scores.safetensors, curve.png (if wanted), prompts.jsonl and, last, circuit.json."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)  # a folder with a summary holds one whole run, never parts of two
        write_whole(folder / "curve.parquet", lambda path: self.frame().to_parquet(path, index=False))
        write_whole(folder / "scores.safetensors", lambda path: save_file(self.rankings, path))
        if figure:
            save(lambda: draw_curves([self.summary()]), folder / "curve.png")
        write_whole(folder / "prompts.jsonl", lambda path: path.write_text(self.prompt_lines(), encoding="utf-8"))
        text = json.dumps(self.summary(), indent=2, ensure_ascii=False)
        write_whole(folder / SUMMARY, lambda path: path.write_text(text + "\n", encoding="utf-8"))

    def prompt_lines(self) -> str:
        """The prompts in the format of a jsonl task, with the metric of each."""
        lines = []
        for row, encoded in enumerate(self.prompts.pairs):
            pair = encoded.pair
            record = {
                "clean": pair.clean,
                "corrupted": pair.corrupted,
                "answers": pair.answers,
                "wrong": pair.wrong,
                "template": pair.template,
                "metric": self.prompts.metric,
                "clean_metric": float(self.clean[row]),
                "corrupted_metric": float(self.corrupted[row]),
            }
            lines.append(json.dumps(record, ensure_ascii=False))
        return "\n".join(lines) + "\n"
