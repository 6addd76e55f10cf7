"""The curves of a comparison beside those of its controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple

from gossamer.comparison.controls import UNITS
from gossamer.comparison.run import Result
from gossamer.comparison.stored import Stored
from gossamer.comparison.tables import BASELINES, baselines
from gossamer.figures.panels import scale_axes
from gossamer.figures.style import plain

WHITE: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
GREY = "0.55"


def draw_controls(results: Sequence[Result], colours: Sequence[tuple[str, str]]) -> Figure:
    """A column for each task, heads above edges."""
    figure = Figure(figsize=(max(2.45 * len(results), 5.2), 4.6), layout="constrained")
    grid = figure.subplots(len(UNITS), len(results), squeeze=False)
    noted = 0
    for row, units in zip(grid, UNITS, strict=True):
        for axes, result, (dense, sparse) in zip(row, results, colours, strict=True):
            noted = max(noted, draw_one(axes, baselines(result, units), dense, sparse))
    for axes in grid.ravel():
        axes.set_ylim(-0.15 - 0.11 * noted, 1.3)  # the notes stand below the curves
    for axes, result in zip(grid[0], results, strict=True):
        axes.set_title(plain(result.title), loc="left")
    for axes in grid[:, 0]:
        axes.set_ylabel("Explained Effect")
    lines: dict[str, dict[str, Any]] = {}  # by label and colour: every pair of models has colours of its own
    for axes in grid.ravel():
        for line, label in zip(*axes.get_legend_handles_labels()):
            lines.setdefault(label, {}).setdefault(line.get_color(), line)
    ordered = [label for label in BASELINES.values() if label in lines]
    handles: list[Any] = [tuple(lines[label].values()) for label in ordered]
    figure.legend(
        handles,
        ordered,
        loc="outside lower center",
        ncols=4 if len(results) > 2 else 2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.4)},
        handlelength=4 if any(len(found) > 1 for found in lines.values()) else 2,
    )
    return figure


def draw_one(axes: Axes, curves: dict[str, Stored | str], dense: str, sparse: str) -> int:
    """Draws, and gives the number of lines in its note."""
    styles: dict[str, dict[str, Any]] = {
        "dense": {"color": dense},
        "sparse": {"color": sparse},
        "tuned": {"color": "black", "linewidth": 0.9},
        "random-dense": {"color": dense, "linestyle": (0, (4, 2)), "linewidth": 0.9},
        "random-sparse": {"color": sparse, "linestyle": (0, (4, 2)), "linewidth": 0.9},
        "untrained": {"color": GREY, "linestyle": (0, (1, 1.2)), "linewidth": 1},
        "nonsense-dense": {"color": dense, "linestyle": (0, (1, 1.2)), "linewidth": 0.9},
        "nonsense-sparse": {"color": sparse, "linestyle": (0, (1, 1.2)), "linewidth": 0.9},
    }
    real = [curve for curve in curves.values() if not isinstance(curve, str)]
    log = real[0].units == "edges"
    nothing = []
    for name, curve in curves.items():
        if isinstance(curve, str):
            nothing.append(BASELINES[name])
            continue
        start = 1 if log else 0
        effect = np.clip(curve.effect[start:], -2, 3)
        axes.plot(curve.ks[start:], effect, label=BASELINES[name], **styles[name])
    axes.axhline(0.9, color="0.85", linewidth=0.7, zorder=0)
    scale_axes(axes, real[0].units, max(curve.total for curve in real))
    if not nothing:
        return 0
    said = ["no effect to explain:", *nothing]
    axes.text(
        0.98,
        0.03,
        "\n".join(said),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=5,
        color="0.35",
        bbox=WHITE,
    )
    return len(said)
