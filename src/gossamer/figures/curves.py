"""Curves of explained effect against units kept, drawn from the summaries of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gossamer.tasks import TASKS

COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito: safe for colour blindness


def draw_curves(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel for each task and kind of unit, one line for each run, as a PNG."""
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        panels.setdefault((run["task"]["name"], run["units"]), []).append(run)
    figure = Figure(figsize=(3.4 * len(panels), 2.6), layout="constrained")
    for axes, ((task, units), members) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        axes.set_title(plain(TASKS[task].title if task in TASKS else task), fontsize=10)
        draw_panel(axes, units, members)
    figure.savefig(path, dpi=200, format="png")


def draw_panel(axes: Axes, units: str, runs: Sequence[dict[str, Any]]) -> None:
    axes.axhline(0.9, color="0.6", linewidth=0.8, linestyle="--")
    for colour, run in zip(COLOURS * (1 + len(runs) // len(COLOURS)), runs):
        ks, effect = run["curve"]["k"], run["curve"]["explained_effect"]
        if units == "edges":  # there is no 0 on a logarithmic axis
            ks, effect = ks[1:], effect[1:]
        k90 = "not reached" if run["k90"] is None else f"{run['k90']:,}"
        axes.plot(ks, effect, color=colour, linewidth=1.4, label=plain(f"{describe(run)}: k90 = {k90}"))
        if run["k90"] is not None:
            axes.plot([run["k90"]], [0.9], "o", color=colour, markersize=3.5)
    if units == "edges":
        axes.set_xscale("log")
    axes.set_xlabel(f"Number of {units.capitalize()} Kept", fontsize=9)
    axes.set_ylabel("Explained Effect", fontsize=9)
    low = min(min(run["curve"]["explained_effect"]) for run in runs)
    high = max(max(run["curve"]["explained_effect"]) for run in runs)
    axes.set_ylim(min(-0.05, low - 0.05), max(1.05, high + 0.05))
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=7, frameon=False)


def describe(run: dict[str, Any]) -> str:
    return "random" if run["ranking"] == "random" else f"{run['ranking']}, {run['importance']}"


def plain(text: str) -> str:
    """Text as it is: a dollar sign would start matplotlib's mathematics."""
    return text.replace("$", r"\$")
