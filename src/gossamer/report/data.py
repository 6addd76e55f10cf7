"""From a run's files to what its page shows: one value for JSON, and bytes by name for all that is large.

Nothing here needs a model: numbers are copied, but for the curves' bands, which are resampled as the figures' are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.comparison import explorer
from gossamer.comparison.controls import FOLDER as CONTROLS
from gossamer.comparison.controls import UNITS
from gossamer.comparison.multiplier import MEASURES
from gossamer.comparison.run import REQUEST, RESULT, SIDES, Result, results
from gossamer.comparison.stored import Stored
from gossamer.comparison.tables import BASELINES, NUMBERS, baselines, tables
from gossamer.comparison.trained import read_training
from gossamer.errors import GossamerError
from gossamer.figures.panels import pair_colours
from gossamer.figures.run import FOLDER as FIGURES
from gossamer.figures.run import pair_names
from gossamer.files import read_json
from gossamer.report.pack import Pack

MOST_EDGES = 4096  # of a prompt's ranking: more could not be told apart on a screen

TITLES = {
    "heads_sentence": "Heads, ranked within each prompt",
    "edges_sentence": "Edges, ranked within each prompt",
    "heads_dataset": "Heads, one ranking for the task",
    "controls": "Controls",
    "training": "Post-training",
}


@dataclass(frozen=True, eq=False)
class Report:
    data: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def collect(run: Path) -> Report:
    """All that the page of a finished run shows.

    Raises:
        GossamerError: the folder holds no run of compare or reproduce, or one that is not finished.
    """
    panels = results(run)
    try:
        multipliers = json.loads((run / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GossamerError(f"{run} is not finished: give the command that began it again") from error
    if not (isinstance(multipliers, list) and len(multipliers) == len(MEASURES) * len(panels)):
        raise GossamerError(f"{run / RESULT} is not that of this run: gossamer figures writes it again")
    colours = pair_colours([result.panel.dense for result in panels])
    files: dict[str, bytes] = {}
    found = []
    for number, (result, pair) in enumerate(zip(panels, colours, strict=True)):
        rows = multipliers[number :: len(panels)]  # written by measure, then by panel
        found.append({**panel_data(result, rows), "colours": pair, "explorer": explorer_data(result, files)})
    asked = read_json(run / REQUEST) or {}
    data = {
        "name": run.resolve().name,
        "settings": {key: value for key, value in asked.items() if key != "panels"},
        "versions": panels[0].circuits["heads_sentence"][0].summary["versions"],
        "measures": {name: {"units": u, "ranking": r, "title": TITLES[name]} for name, (u, r) in MEASURES.items()},
        "panels": found,
        "trainings": [training_data(asdict(training)) for training in read_training(run)],
        "figures": figure_data(run, panels, files),
        "controls": control_tables(run / NUMBERS),
    }
    return Report(data, files)


def panel_data(result: Result, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A task: its models, curves and head rankings."""
    first = result.circuits["heads_sentence"]
    task = first[0].summary["task"]
    labels = pair_names(result)
    return {
        "id": result.folder.name,
        "task": result.panel.task,
        "title": result.title,
        "metric": task["metric_definition"],
        "prompts": task["prompts"],
        "tokens": task["tokens"],
        "models": {
            side: {**stored.summary["model"], "name": name, "label": label, "accuracy": stored.summary["accuracy"]}
            for side, stored, name, label in zip(
                SIDES, first, (result.panel.dense, result.panel.sparse), labels, strict=True
            )
        },
        "curves": {
            measure: {side: curve_data(stored) for side, stored in zip(SIDES, pair, strict=True)}
            for measure, pair in result.circuits.items()
        },
        "controls": control_data(result),
        "multipliers": {row["measure"]: row for row in rows},
        "heads": {side: head_data(s) for side, s in zip(SIDES, result.circuits["heads_dataset"], strict=True)},
    }


def curve_data(stored: Stored) -> dict[str, Any]:
    low, high = stored.curve.band()
    return {
        "k": stored.ks,
        "effect": plain(stored.effect),
        "low": plain(low),
        "high": plain(high),
        "k90": stored.k90,
        "total": stored.total,
    }


def control_data(result: Result) -> dict[str, Any]:
    """The curves of the controls by units and name; the reason where there is no curve to draw."""
    found: dict[str, Any] = {}
    if (result.folder / CONTROLS).exists():
        for units in UNITS:
            found[units] = {}
            for name, stored in baselines(result, units).items():
                if name in SIDES:
                    continue
                entry: dict[str, Any] = {"label": BASELINES[name]}
                if isinstance(stored, str):
                    entry["reason"] = stored
                else:
                    entry |= curve_data(stored)
                found[units][name] = entry
    return found


def control_tables(path: Path) -> dict[str, Any]:
    """The controls as tables; the reason where there is a file but no table."""
    if not path.exists():
        return {}
    try:
        found = tables(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whatever a damaged file leads to
        return {"missing": f"{path.name} can't be read: gossamer figures writes it again"}
    return {"tables": [table._asdict() for table in found]}


def head_data(dataset: Stored) -> dict[str, Any]:
    """Every head's mean score on the task, and its place in the ranking, from 1; both by layer * heads + head."""
    order = dataset.head_order().numpy()
    rank = np.empty(len(order), dtype=int)
    rank[order] = np.arange(1, len(order) + 1)
    scores = dataset.scores()["scores"].double().mean(dim=0).flatten().numpy()
    return {"score": plain(scores), "rank": rank.tolist()}


def explorer_data(result: Result, files: dict[str, bytes]) -> dict[str, Any]:
    """The prompts that can be explored. Patterns and edges go into `files`, one for each model."""
    paths = [result.folder / side / explorer.FILE for side in SIDES]
    if not all(path.exists() for path in paths):
        return {"missing": "this run was made without the patterns of all heads: give its command again to add them"}
    try:
        both = [explorer.read(path) for path in paths]
    except GossamerError as error:
        return {"missing": f"{error}; remove that file and give the run's command again"}
    if any(dense.clean != sparse.clean for dense, sparse in zip(*both)):
        return {"missing": "the two models have different tokens, so that their edges can't be drawn side by side"}
    prompts: list[dict[str, Any]] = [
        {"clean": one.clean, "corrupted": one.corrupted, "sides": {}} for one, _ in zip(*both)
    ]
    for side, edges, explored in zip(SIDES, result.circuits["edges_sentence"], both, strict=True):
        pack = Pack()
        ranking = {name: tensor.numpy() for name, tensor in edges.scores().items()}
        for row, (entry, one) in enumerate(zip(prompts, explored)):
            entry["sides"][side] = {
                "after_clean": one.after_clean,
                "after_corrupted": one.after_corrupted,
                "effect": plain(prompt_effect(edges, row)),
                "patterns": pack.add(one.patterns),
                **edge_data(pack, ranking["index"][row], ranking["scores"][row]),
            }
        files[f"{result.folder.name}/{side}"] = pack.bytes()
    return {"prompts": prompts}


def prompt_effect(stored: Stored, row: int) -> np.ndarray:
    """One prompt's explained effect, (k,); NaN where it has none to explain."""
    kept, clean = stored.kept[row], stored.clean[row]
    with np.errstate(divide="ignore", invalid="ignore"):
        effect: np.ndarray = (kept - kept[0]) / (clean - kept[0])
    return effect


def edge_data(pack: Pack, index: np.ndarray, scores: np.ndarray) -> dict[str, int]:
    """A prompt's edges, best first: layers, heads, queries and keys one after the other, then scores."""
    known = min(MOST_EDGES, int((index[:, 0] >= 0).sum()))
    return {
        "edges": known,
        "index": pack.add(index[:known].T.astype(np.int16)),
        "scores": pack.add(scores[:known].astype(np.float32)),
    }


def training_data(training: dict[str, Any]) -> dict[str, Any]:
    columns = ("step", "held_out_loss", "edges")
    training["evaluations"] = [{key: row[key] for key in columns if key in row} for row in training["evaluations"]]
    return training


def figure_data(run: Path, panels: Sequence[Result], files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The run's figures; those that are not there are left out."""
    titles = {name: TITLES[name] for name in MEASURES}
    titles |= {f"grid_{result.folder.name}": f"Patterns of the heads needed, {result.title}" for result in panels}
    titles |= {name: TITLES[name] for name in ("controls", "training")}
    found = []
    for name, title in titles.items():
        kinds = [kind for kind in ("png", "svg") if (run / FIGURES / f"{name}.{kind}").exists()]
        for kind in kinds:
            files[f"{name}.{kind}"] = (run / FIGURES / f"{name}.{kind}").read_bytes()
        if kinds:
            found.append({"name": name, "title": title, "kinds": kinds})
    return found


def plain(values: np.ndarray) -> list[float | None]:
    """For JSON: six digits, null where there is no number."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
