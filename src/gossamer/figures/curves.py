"""Curves of explained effect against units kept, drawn from the summaries of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.figures.style import COLOURS, plain
from gossamer.tasks import TASKS

Run = dict[str, Any]


def draw_curves(runs: Sequence[Run]) -> Figure:
    """One panel for each task and kind of unit, one line for each run."""
    panels: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        panels.setdefault((run["task"]["name"], run["units"]), []).append(run)
    names = labels(runs)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(names))}  # same in every panel
    named = {id(run): name for run, name in zip(runs, names, strict=True)}

    rows = max(len(members) for members in panels.values())
    figure = Figure(figsize=(3.4 * len(panels), 2.4 + 0.16 * rows), layout="constrained")
    for axes, ((task, units), members) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        axes.set_title(plain(TASKS[task].title if task in TASKS else task))
        draw_panel(axes, units, [(named[id(run)], colours[named[id(run)]], run) for run in members])
    return figure


def draw_panel(axes: Axes, units: str, lines: Sequence[tuple[str, str, Run]]) -> None:
    axes.axhline(0.9, color="0.6", linewidth=0.8, linestyle="--")
    low, high = 0.0, 1.0
    for name, colour, run in lines:
        ks, effect = run["curve"]["k"], run["curve"]["explained_effect"]
        low, high = min(low, *effect), max(high, *effect)
        if units == "edges":  # there is no 0 on a logarithmic axis
            ks, effect = ks[1:], effect[1:]
        k90 = "not reached" if run["k90"] is None else f"{run['k90']:,}"
        axes.plot(ks, effect, color=colour, linewidth=1.2, label=plain(f"{name}: 90% with {k90}"))
    if units == "edges":
        axes.set_xscale("log")
    axes.set_ylim(low - 0.05, high + 0.05)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xlabel(f"Number of {units.capitalize()} Kept")
    axes.set_ylabel("Explained Effect")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), borderaxespad=0)


def labels(runs: Sequence[Run]) -> list[str]:
    """How each run was ranked, and whatever else tells it from the others."""

    def fields(run: Run) -> dict[str, str]:
        return {
            "model": Path(run["model"]["name"]).name,
            "dtype": run["model"]["dtype"],
            "prompts": f"{run['task']['prompts']} prompts",
            "seed": f"seed {run['task']['seed']}",
            "sign": run["sign"] or "",
            "replace": run["replace"],
        }

    every = [fields(run) for run in runs]
    differing = [name for name in every[0] if len({f[name] for f in every if f[name]}) > 1]
    names = []
    for run, own in zip(runs, every, strict=True):
        how = run["ranking"] if run["importance"] is None else f"{run['ranking']}, {run['importance']}"
        names.append(", ".join([*(own[name] for name in differing if own[name]), how]))
    return names
