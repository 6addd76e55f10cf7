"""Checkpoints of a run: folders that are there whole or not at all, without pickle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from gossamer.errors import GossamerError
from gossamer.files import write_folder, write_whole

FOLDER = "checkpoints"
HELD_OUT = "held-out.safetensors"
KEPT = 2  # the last few


class Checkpoints:
    """`step-000150` holds all that a run needs to go on; `best-000100` the sparsest feasible weights so far."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def steps(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())

    def save(
        self, step: int, weights: Mapping[str, Tensor], optimiser: torch.optim.Optimizer, state: dict[str, Any]
    ) -> Path:
        path = self.folder / f"step-{step:06}"
        tensors, numbers = flatten(optimiser)

        def write(folder: Path) -> None:
            save_file(own(weights), folder / "weights.safetensors")
            save_file(tensors, folder / "optimiser.safetensors")
            text = json.dumps({**state, "optimiser": numbers})
            (folder / "state.json").write_text(text, encoding="utf-8")

        write_folder(path, write)
        needed = set()
        for kept in self.steps()[-KEPT:]:
            needed |= {kept.name, read_state(kept)["progress"]["best"].get("name")}
        for old in [*self.steps(), *self.folder.glob("best-*")]:
            if old.name not in needed:
                shutil.rmtree(old)
        return path

    def save_best(self, name: str, weights: Mapping[str, Tensor]) -> None:
        write_folder(self.folder / name, lambda folder: save_file(own(weights), folder / "weights.safetensors"))

    def load_best(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / name / "weights.safetensors")

    def check_best(self, name: str) -> None:
        """A run that could not end needn't go on."""
        path = self.folder / name / "weights.safetensors"
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise GossamerError(f"{path} can't be read ({error}): the run can't go on, --force begins anew") from error

    def save_held_out(self, blocks: Tensor) -> None:
        write_whole(self.folder / HELD_OUT, lambda path: save_file({"blocks": blocks}, path))

    def held_out(self) -> Tensor | None:
        """The text that the run is judged on. What a model says itself can't be drawn again to the letter by another
        number of threads or another device, and the bound would move with it."""
        path = self.folder / HELD_OUT
        try:
            return load_file(path)["blocks"] if path.exists() else None
        except (OSError, SafetensorError, KeyError) as error:
            raise GossamerError(f"{path} can't be read ({error}): the run can't go on, --force begins anew") from error

    def learning_rate(self) -> float:
        """That of the run so far."""
        return float(self.last()[2]["lr"])

    def last(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        """Weights, the optimiser's tensors and the state of the newest checkpoint."""
        path = self.steps()[-1]
        try:
            weights, optimiser = (load_file(path / f"{name}.safetensors") for name in ("weights", "optimiser"))
            return weights, optimiser, read_state(path)
        except (OSError, SafetensorError, ValueError) as error:  # damaged after it was written
            raise GossamerError(
                f"the checkpoint {path} can't be read ({error}): remove it to go on from the one before"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if missing := {"lr", "progress", "constraint", "blocks", "optimiser"} - state.keys():
        raise ValueError(f"state.json has no {sorted(missing)[0]}")
    return state


def own(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def flatten(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors and numbers, in the order of its parameters."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, parameter in enumerate(parameters(optimiser)):
        for key, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value.detach().cpu().contiguous().clone()
            else:
                numbers[f"{index}.{key}"] = value
    return tensors, numbers


def unflatten(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    every = parameters(optimiser)
    for name, value in {**tensors, **numbers}.items():
        index, _, key = name.partition(".")
        parameter = every[int(index)]
        if isinstance(value, Tensor) and key != "step":
            value = value.to(parameter.device)
        optimiser.state[parameter][key] = value


def parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
