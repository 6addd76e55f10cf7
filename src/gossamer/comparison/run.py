"""A comparison: a folder with the circuits of dense and sparse models on some tasks, the multipliers, and the figures.

RUN/run.json, models.json                       what was asked, of which models
RUN/models/NAME-sparse/                         the sparse twins, where they were made by this run
RUN/panels/TASK/{dense,sparse}/MEASURE/         a circuit each; panels of a task that came before are TASK-2, ...
RUN/panels/TASK/{dense,sparse}/patterns.safetensors, explorer.safetensors
RUN/multipliers.json, multipliers.csv
RUN/figures/
RUN/report.html
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gossamer.attention import gating
from gossamer.circuits.circuit import SUMMARY
from gossamer.comparison import explorer
from gossamer.comparison.choices import combinations, file_of, measure_choices, write_choices
from gossamer.comparison.controls import control_side, control_tuned, controlled, measured
from gossamer.comparison.jobs import Bar, Shared, save_circuit, silent
from gossamer.comparison.multiplier import MEASURES, Multiplier, check_same_prompts, multiplier
from gossamer.comparison.patterns import FILE, Patterns
from gossamer.comparison.same import FILE as SEEN
from gossamer.comparison.same import Seen, check_same_model, look
from gossamer.comparison.stored import Stored
from gossamer.comparison.tables import write_controls
from gossamer.comparison.trained import copy_training, read_training
from gossamer.errors import GossamerError
from gossamer.files import only_process, read_json, write_text
from gossamer.models import Model, find_folder, load
from gossamer.tasks import TASKS, Prompts, prompts
from gossamer.training.settings import differing

REQUEST = "run.json"
RESULT = "multipliers.json"
ADDING = ("controls", "every")  # what a finished run can be asked for later
REPORT = "report.html"
PRODUCTS = (
    RESULT,
    REPORT,
    SEEN,
    "multipliers.csv",
    "controls.json",
    "controls.md",
    "training.json",
    "choices.csv",
    "agreement.csv",
)
LOADED = ("dtype", "revision", "first_token")  # of how models are loaded, what changes their numbers
SIDES = ("dense", "sparse")
ORDER = ("sparse", "dense", "tuned")  # dense models are asked what the heads of the sparse ones explain in them


@dataclass(frozen=True)
class Panel:
    """A task, and the two models that do it."""

    task: str
    dense: str
    sparse: str
    tuned: str | None = None  # the dense model fine-tuned with no penalty, as a control

    @classmethod
    def parse(cls, text: str) -> Panel:
        """From TASK=DENSE,SPARSE or TASK=DENSE,SPARSE,TUNED"""
        task, equals, models = text.partition("=")
        names = models.split(",")
        if not equals or not task or len(names) not in (2, 3) or not all(names):
            raise GossamerError(f"--panel {text}: give TASK=DENSE,SPARSE, such as ioi=gpt2,./sparse-gpt2")
        return cls(task, *names)

    def model(self, side: str) -> str | None:
        return {"dense": self.dense, "sparse": self.sparse, "tuned": self.tuned}[side]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How the circuits are found: see `gossamer.circuit`."""

    prompts: int | None = None
    seed: int = 0
    importance: str = "ig"
    sign: str = "absolute"
    replace: str = "corrupted"
    sizes: str = "every"
    controls: bool = True
    every: bool = False

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("importance", "sign", "replace", "seed", "sizes")}


def compare(
    panels: Sequence[Panel],
    out: str | Path,
    *,
    loading: dict[str, Any] | None = None,
    force: bool = False,
    bar: Bar = silent,
    prepare: Callable[[], None] = lambda: None,
    **choices: Any,
) -> list[Multiplier]:
    """Find the circuits of both models of every panel, and write the multipliers and figures to the folder `out`.

    Args:
        panels: the tasks with their models. The sparse model is asked the same prompts as the dense one.
        out: a new folder, or one with an interrupted run of the same request, which then goes on.
        loading: how models are loaded, the arguments of `gossamer.load`.
        force: replace another run.
        bar: a context manager for each job, which gives its progress function.
        prepare: called when the folder is ready, to make models that the panels name.
        choices: prompts, seed, importance, sign, replace, sizes, controls (whether to measure them), every
            (whether to find the multiplier under every other choice too).

    Raises:
        GossamerError: an unknown choice or model, or a folder that holds something else.
    """
    folder = Path(out)
    chosen = Choices(**{name: choice for name, choice in choices.items() if choice is not None})
    names = folders(panels)
    if twice := [panel.task for number, panel in enumerate(panels) if panel in panels[:number]]:
        raise GossamerError(f"{twice[0]} is asked of the same models twice: give it once")
    loaded = {name: str(choice) for name in LOADED if (choice := (loading or {}).get(name)) is not None}
    asked = {"panels": [asdict(panel) for panel in panels], **asdict(chosen), **loaded, **files_of(panels)}
    with run(folder, asked, force=force):
        prepare()
        beginnings = first_tokens(panels) if loaded.get("first_token", "auto") == "auto" else {}
        seen = Seen(folder)
        for name in dict.fromkeys(panel.model(side) for side in ORDER for panel in panels):  # each is loaded once
            if name is None:
                continue
            model: Model | None = None
            looks = look(name)
            unchanged = seen.looks.get(name) == looks
            for panel, place in zip(panels, names, strict=True):
                for side in ORDER:
                    here = folder / "panels" / place
                    if panel.model(side) != name or (unchanged and finished(here, side, chosen)):
                        continue
                    if side == "tuned" and not chosen.controls:
                        continue
                    model = model or load(name, **{**(loading or {}), **beginnings.get(name, {})})
                    check_same_model(model, here, side)
                    if finished(here, side, chosen):
                        continue
                    if side == "tuned":
                        control_tuned(model, prompts_of(model, panel, chosen), here, chosen.settings(), bar)
                    else:
                        find_circuits(model, panel, side, here, chosen, bar)
            seen.keep(name, looks)
        copy_training(list(dict.fromkeys(panel.sparse for panel in panels)), folder)
        return summarise(folder)


def first_tokens(panels: Sequence[Panel]) -> dict[str, dict[str, str]]:
    """A sparse model that was post-trained with a first token that was asked for is compared with that one in front of
    every prompt, in all models of its panel."""
    found: dict[str, dict[str, str]] = {}
    for panel in panels:
        names = [name for name in map(panel.model, ORDER) if name is not None]
        configs = [read_json(folder / "config.json") or {} for folder in map(find_folder, names) if folder is not None]
        asked = [config.get(gating.SECTION, {}).get("first_token") for config in configs]
        told = next(({"first_token": str(token)} for token in asked if token is not None), {})
        for name in names:
            if found.setdefault(name, told) != told:
                raise GossamerError(
                    f"{name} is compared with models that were post-trained with different first tokens: compare it "
                    "with one at a time, or give --first-token"
                )
    return found


def finished(folder: Path, side: str, chosen: Choices) -> bool:
    if side == "tuned":
        return not chosen.controls or measured(folder, "tuned")
    files = [*(f"{side}/{measure}/{SUMMARY}" for measure in MEASURES), f"{side}/{FILE}", f"{side}/{explorer.FILE}"]
    if chosen.controls and not controlled(folder, side):
        return False
    every = [file_of(folder, side, choice) for choice in combinations()] if chosen.every else []
    return all(path.exists() for path in [*(folder / file for file in files), *every])


def files_of(panels: Sequence[Panel]) -> dict[str, str]:
    """The tasks that are files, with a fingerprint of each: with other prompts in it, it is another run."""
    paths = {panel.task: Path(panel.task) for panel in panels if panel.task not in TASKS}
    return {
        f"text in {task}": hashlib.sha256(path.read_bytes()).hexdigest()
        for task, path in paths.items()
        if path.is_file()
    }


def prompts_of(model: Model, panel: Panel, chosen: Choices) -> Prompts:
    return prompts(panel.task, model, chosen.prompts, seed=chosen.seed)


def find_circuits(model: Model, panel: Panel, side: str, folder: Path, chosen: Choices, bar: Bar) -> None:
    """The circuits of one model on one task, and its controls."""
    some, settings, shared = prompts_of(model, panel, chosen), chosen.settings(), Shared()
    for measure, (units, ranking) in sorted(MEASURES.items(), key=lambda item: item[1][0]):  # edges first: see Shared
        asked = {"units": units, "ranking": ranking, **settings}
        name = f"{panel.task}, {model.name}, {units} by {ranking}"
        save_circuit(model, some, folder / side / measure, asked, name, bar, shared)
    if not (folder / side / FILE).exists():
        Patterns.of(model, some, Stored.read(folder / side / "heads_dataset")).save(folder / side / FILE)
    if not (folder / side / explorer.FILE).exists():
        explorer.save(explorer.explore(model, some), folder / side / explorer.FILE)
    if chosen.controls:
        control_side(model, side, some, folder, settings, bar, shared)
    if chosen.every:
        measure_choices(model, side, some, folder, chosen.seed, bar)


def folders(panels: Sequence[Panel]) -> list[str]:
    """A folder name for each panel: nothing of a task's file name but letters, digits and the like."""
    if not panels:
        raise GossamerError("no panels: give at least one, TASK=DENSE,SPARSE")
    names: list[str] = []
    for panel in panels:
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(panel.task).name.removesuffix(".jsonl")).strip("-") or "task"
        numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
        names.append(next(name for name in numbered if name not in names))
    return names


@contextmanager
def run(folder: Path, asked: dict[str, Any], *, force: bool) -> Iterator[None]:
    """Hold the folder, and make sure that what it holds is this run."""
    if folder.exists() and not folder.is_dir():
        raise GossamerError(f"{folder} is a file: give a folder to write to")
    begun = read_json(folder / REQUEST)
    if begun is None and (folder / REQUEST).exists():
        raise GossamerError(f"{folder / REQUEST} can't be read: put it back, or give another folder")
    strangers = [path.name for path in folder.iterdir() if path.name != "lock"] if folder.exists() else []
    if begun is None and strangers:
        raise GossamerError(f"{folder} holds other files ({sorted(strangers)[0]}): give a new or empty folder")
    others = [key for key in differing(begun or asked, known_to(begun, asked)) if key not in ADDING]
    if others and not force:
        raise GossamerError(
            f"{folder} holds a run that was asked otherwise ({', '.join(others)}): give another folder, or --force to "
            "replace it"
        )
    new = [path for path in (folder, *folder.parents) if not path.exists()]  # what we create, innermost first
    folder.mkdir(parents=True, exist_ok=True)
    with only_process(folder / "lock", folder):
        if force:
            clear(folder)
        write_text(folder / REQUEST, json.dumps(asked, indent=2) + "\n")
        try:
            yield
        except GossamerError:
            if begun is None and not (folder / "panels").exists() and not (folder / "models").exists():
                for name in (REQUEST, "lock"):  # refused before anything was done: nothing is left behind
                    (folder / name).unlink()
                for path in new:
                    path.rmdir()
            elif begun is not None and not force:
                write_text(folder / REQUEST, json.dumps(begun, indent=2) + "\n")  # without the control that is no model
            raise


def known_to(begun: dict[str, Any] | None, asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked but for fine-tuned controls that a run began without: those can be added too."""
    before = (begun or {}).get("panels")
    if not isinstance(before, list) or len(before) != len(asked["panels"]):
        return asked
    panels = [
        {**new, "tuned": new["tuned"] if not isinstance(old, dict) or old.get("tuned") else None}
        for old, new in zip(before, asked["panels"])
    ]
    return {**asked, "panels": panels}


def clear(folder: Path) -> None:
    for name in PRODUCTS:
        (folder / name).unlink(missing_ok=True)
    for name in ("panels", "figures", "models"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)


@dataclass(frozen=True, eq=False)
class Result:
    """A panel's circuits, read back from their files."""

    panel: Panel
    folder: Path
    circuits: dict[str, tuple[Stored, Stored]] = field(default_factory=dict)  # by measure: dense, sparse

    @property
    def title(self) -> str:
        task = self.panel.task
        return TASKS[task].title if task in TASKS else Path(task).name.removesuffix(".jsonl")

    def patterns(self) -> tuple[Patterns, Patterns]:
        dense, sparse = (Patterns.read(self.folder / side / FILE) for side in SIDES)
        return dense, sparse


def results(folder: Path) -> list[Result]:
    """What a finished run holds.

    Raises:
        GossamerError: the folder holds no such run, or one that is not finished.
    """
    asked = read_json(folder / REQUEST)
    try:
        panels = [Panel(**panel) for panel in (asked or {})["panels"]]
    except (KeyError, TypeError) as error:
        if (folder / REQUEST).exists():
            raise GossamerError(f"{folder / REQUEST} can't be read: put it back, or make the run again") from error
        raise GossamerError(f"{folder} holds no run of compare or reproduce: it has no {REQUEST}") from error
    found = []
    for panel, place in zip(panels, folders(panels), strict=True):
        here = folder / "panels" / place
        circuits = {}
        for measure in MEASURES:
            dense, sparse = (Stored.read(here / side / measure) for side in SIDES)
            circuits[measure] = (dense, sparse)
        found.append(Result(panel, here, circuits))
    check_weights(folder, found)
    return found


def check_weights(folder: Path, found: Sequence[Result]) -> None:
    """A run that was resumed with another model under the same name is no run."""
    weights: dict[str, str] = {}
    for result in found:
        for pair in result.circuits.values():
            for name, stored in zip((result.panel.dense, result.panel.sparse), pair, strict=True):
                own = stored.summary["model"]["weights"]
                if weights.setdefault(name, own) != own:
                    raise GossamerError(
                        f"{folder}: {name} changed while the run was interrupted; --force does all of it again"
                    )


def redraw(folder: Path) -> list[Multiplier]:
    """`summarise` on its own, while no run writes to the folder."""
    if not (folder / REQUEST).exists():
        results(folder)  # says that there is no run
    with only_process(folder / "lock", folder):
        return summarise(folder)


def summarise(folder: Path) -> list[Multiplier]:
    """The multipliers, the figures and the report of a finished run, from its files."""
    from gossamer.figures.run import draw_run
    from gossamer.report.page import write_report

    panels, trainings = results(folder), read_training(folder)
    untrained = {training.name: training.doubt for training in trainings if training.doubt}
    bases = {training.name: training.base_weights for training in trainings}
    table = []
    for measure in MEASURES:
        for result in panels:
            dense, sparse = result.circuits[measure]
            check_same_prompts(dense, sparse)
            doubts = [f"{side}: {w}" for side, c in zip(SIDES, (dense, sparse)) for w in c.summary["warnings"]]
            if dense.summary["model"]["sparse"]:
                doubts.append(f"dense: {result.panel.dense} has gates, it is a sparse model")
            if not sparse.summary["model"]["sparse"]:
                doubts.append(f"sparse: {result.panel.sparse} has no gates, it is a dense model")
            if doubt := untrained.get(result.panel.sparse):
                doubts.append(f"sparse: {doubt}")
            base = bases.get(result.panel.sparse)
            if base is not None and base != dense.summary["model"]["weights"]:
                doubts.append(f"sparse: it was made from another model than {result.panel.dense}")
            found = multiplier(result.panel.task, measure, dense.curve, sparse.curve)
            table.append(dataclasses.replace(found, doubts=tuple(doubts)))
    write_controls(folder, panels, trainings)
    write_choices(folder, panels)
    draw_run(folder, panels, table)
    rows = [entry.as_json() for entry in table]
    frame = pd.json_normalize(rows)
    write_text(folder / "multipliers.csv", frame.to_csv(index=False))
    write_text(folder / RESULT, json.dumps(rows, indent=2) + "\n")
    write_report(folder)
    return table
