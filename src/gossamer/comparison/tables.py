"""The controls of a run as one file of numbers and one of tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.circuits.circuit import SUMMARY
from gossamer.comparison import bootstrap
from gossamer.comparison.controls import FOLDER, NO_EFFECT, UNITS
from gossamer.comparison.stored import Stored
from gossamer.comparison.trained import Training
from gossamer.errors import GossamerError
from gossamer.files import write_text

if TYPE_CHECKING:
    from gossamer.comparison.run import Result

NUMBERS = "controls.json"
BASELINES = {
    "dense": "dense",
    "sparse": "sparse",
    "tuned": "dense, fine-tuned with no penalty",
    "random-dense": "dense, ranked by chance",
    "random-sparse": "sparse, ranked by chance",
    "untrained": "untrained",
    "nonsense-dense": "dense, answers shuffled",
    "nonsense-sparse": "sparse, answers shuffled",
}
DOUBTFUL = ("nonsense", "untrained")  # expected to have no effect
NEGLIGIBLE = 0.01  # of the dense model's effect
DONE = {"right": ("accuracy", ".1%"), "effect": ("effect", ".3g")}


def baselines(result: Result, units: str) -> dict[str, Stored | str]:
    """The curves of a panel and its controls by name; where there is nothing to explain, the reason instead."""
    dense, sparse = result.circuits[f"{units}_sentence"]
    found: dict[str, Stored | str] = {"dense": dense, "sparse": sparse}
    for name in BASELINES:
        folder = result.folder / FOLDER / f"{name}-{units}"
        if (folder / SUMMARY).exists():
            stored = Stored.read(folder)
            reason = no_effect(stored, dense) if name.startswith(DOUBTFUL) else ""
            found[name] = reason or stored  # without an effect its curve would be noise over noise
        elif (folder / NO_EFFECT).exists():
            found[name] = "no effect"
    return found


def is_chance(stored: Stored) -> bool:
    """Whether the effect that the curve divides by could be nothing: then so is the curve."""
    error = stored.summary["effect_standard_error"]
    return error is None or abs(stored.summary["effect"]) < 2 * error


def no_effect(control: Stored, dense: Stored) -> str:
    """Why a control has nothing to explain, or ""."""
    effect, error = (control.summary[key] for key in ("effect", "effect_standard_error"))
    if is_chance(control):
        return f"effect {effect:.2g} ± {error or 0:.2g}: chance"
    if abs(effect) < NEGLIGIBLE * abs(dense.summary["effect"]):
        return f"effect {effect:.2g} of the dense model's {dense.summary['effect']:.2g}: nothing"
    return ""


def numbers(stored: Stored | str) -> dict[str, Any]:
    if isinstance(stored, str):
        return {"reason": stored}
    ends = bootstrap.interval(stored.curve.resampled_sizes(bootstrap.resample(len(stored.clean))))
    return {
        "k90": stored.k90,
        "k90_interval": [None if not math.isfinite(end) else end for end in ends],
        "of": stored.total,
        "accuracy": stored.summary["accuracy"],
        "effect": stored.summary["effect"],
        "effect_standard_error": stored.summary["effect_standard_error"],
        "chance": is_chance(stored),
    }


CHECKS = ("held_out_ranking", "rephrasing", "circuit", "standard_scores")  # of every model on every task


def read_side(path: Path) -> dict[str, Any]:
    """The checks of one model on one task."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in CHECKS if key not in found]
    except (OSError, ValueError, TypeError) as error:
        raise GossamerError(
            f"{path} can't be read: {error}; delete it and give the command of the run again"
        ) from error
    if missing:
        raise GossamerError(f"{path} has no {missing[0]!r}; delete it and give the command of the run again")
    return found


def collect(results: Sequence[Result], trainings: Sequence[Training]) -> dict[str, Any]:
    """All controls of a run."""
    tasks = {}
    for result in results:
        sides = {}
        for side in ("dense", "sparse"):
            path = result.folder / FOLDER / f"{side}.json"
            if path.exists():
                sides[side] = read_side(path)
        if sides:
            tasks[result.folder.name] = {
                "baselines": {u: {n: numbers(s) for n, s in baselines(result, u).items()} for u in UNITS},
                **sides,
            }
    kept = ("loss", "base_loss", "loss_renormalised", "kl", "top1_agreement", "edges", "edges_without_first")
    models = {
        training.name: {key: training.evaluation.get(key) for key in (*kept, "edges_without_first_and_diagonal")}
        for training in trainings
    }
    return {"tasks": tasks, "models": models} if tasks else {}


class Table(NamedTuple):
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: dict[str, Any]) -> list[Table]:
    """What `collect` found, as tables."""
    parts = []
    if found["models"]:
        rows = [
            [
                name,
                f"{m['loss']:.4f}",
                f"{m['base_loss']:.4f}",
                nats(m.get("loss_renormalised")),
                f"{m['kl']:.4f}",
                f"{m['top1_agreement']:.1%}",
                f"{m['edges']:.3%}",
                f"{m['edges_without_first']:.3%}",
                f"{m['edges_without_first_and_diagonal']:.3%}",
            ]
            for name, m in found["models"].items()
        ]
        head = ["model", "loss", "base", "renormalised", "KL", "top-1 agreement", "edges", "without first token"]
        parts.append(Table("Is it still the same model?", [*head, "nor diagonal"], rows))
    sides = ("dense", "sparse")
    rows = [
        [
            task,
            *(" / ".join(f"{heads[side][key]:{form}}" for side in sides) for key, form in DONE.values()),
            leak_cell(entry.get("sparse", {}).get("leak"), "accuracy", ".1%"),
        ]
        for task, entry in found["tasks"].items()
        for heads in [entry["baselines"]["heads"]]
    ]
    head = ["task", *(f"{name}, dense / sparse" for name in DONE), "right, sparse as trained / renormalised"]
    parts.append(Table("Does it still do the tasks?", head, rows))
    for units in UNITS:
        names = [name for name in BASELINES if any(name in t["baselines"][units] for t in found["tasks"].values())]
        rows = [
            [BASELINES[name], *(baseline_cell(name, t["baselines"][units].get(name)) for t in found["tasks"].values())]
            for name in names
        ]
        title = f"{units.capitalize()} that explain 90%, ranked within each prompt"
        parts.append(Table(title, ["", *found["tasks"]], rows))
    rows = []
    for task, entry in found["tasks"].items():
        for side in ("dense", "sparse"):
            if side in entry:
                rows.append([task, side, *side_cells(entry[side])])
    head = ["task", "model", "k90: own / other half", "k90: own / other wordings", "without the circuit", "idle heads"]
    parts.append(Table("One ranking of heads for the task", head, rows))
    rows = [
        [
            task,
            f"{d['overlap']['dense_heads']} / {d['overlap']['sparse_heads']}",
            f"{d['overlap']['jaccard']:.2f} ({d['overlap']['by_chance']:.2f})",
            f"{d['sparse_heads_in_dense']['explained_effect']:.2f}",
            f"{d['sparse_heads_in_dense']['explained_effect_of_as_many_of_its_own']:.2f}",
            leak_cell(entry.get("sparse", {}).get("leak"), "k90", ""),
        ]
        for task, entry in found["tasks"].items()
        for d in [entry.get("dense")]
        if d
    ]
    head = [
        "task",
        "heads dense / sparse",
        "Jaccard (by chance)",
        "sparse heads in dense explain",
        "as many of its own",
        "k90 as trained / renormalised",
    ]
    parts.append(Table("Dense and sparse circuits", head, rows))
    rows = [
        [task, side, *(f"{s['cpr']:.3f} / {s['cmd']:.3f}" for s in entry[side]["standard_scores"].values())]
        for task, entry in found["tasks"].items()
        for side in ("dense", "sparse")
        if side in entry
    ]
    head = ["task", "model", "heads, sentence", "edges, sentence", "heads, dataset"]
    parts.append(Table("Standard scores (MIB): CPR / CMD", head, rows))
    return parts


def nats(loss: float | None) -> str:
    """None where a run is from before it was measured."""
    return "-" if loss is None else f"{loss:.4f}"


def k90_cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    if "reason" in entry:
        return str(entry["reason"])
    low, high = ("∞" if end is None else f"{end:,.0f}" for end in entry["k90_interval"])
    k90 = "not reached" if entry["k90"] is None else f"{entry['k90']:,}"
    return f"{k90} ({low} to {high})" + (", by chance" if entry["chance"] else "")


def baseline_cell(name: str, entry: dict[str, Any] | None) -> str:
    """Where little is expected, the effect too: 90% of next to nothing is no circuit."""
    cell = k90_cell(entry)
    if entry is None or "reason" in entry or not name.startswith(DOUBTFUL):
        return cell
    return f"{cell}, of an effect of {entry['effect']:.2g}"


def side_cells(side: dict[str, Any]) -> list[str]:
    def ranked(entry: dict[str, Any]) -> str:
        return "-" if "reason" in entry else f"{entry['k90_own_ranking']} / {entry['k90_other_ranking']}"

    circuit = side["circuit"]
    return [
        ranked(side["held_out_ranking"]),
        ranked(side["rephrasing"]),
        f"{circuit['without_it']:.2f}",
        f"{len(circuit['idle'])} of {circuit['heads']}",
    ]


def leak_cell(entry: dict[str, Any] | None, key: str, form: str) -> str:
    if entry is None or "reason" in entry:
        return "-"
    found = [entry[way][key] for way in ("as_trained", "renormalised")]
    return " / ".join("-" if value is None else f"{value:{form}}" for value in found)


def markdown(found: Sequence[Table], level: int = 2) -> str:
    parts = []
    for title, head, rows in found:
        lines = [head, ["---"] * len(head), *rows]
        text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts += [f"{'#' * level} {title}\n"] * bool(title) + [text + "\n"]
    return "\n".join(parts)


def write_controls(folder: Path, results: Sequence[Result], trainings: Sequence[Training]) -> dict[str, Any]:
    """RUN/controls.json and RUN/controls.md, where controls were measured."""
    found = collect(results, trainings)
    if found:
        write_text(folder / NUMBERS, json.dumps(found, indent=2) + "\n")
        write_text(folder / "controls.md", "# Controls\n\n" + markdown(tables(found)))
    return found
