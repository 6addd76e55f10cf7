"""The attention patterns of the heads that a task needs, dense beside sparse."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gossamer.comparison.patterns import Patterns
from gossamer.figures.style import plain

PER_ROW = 16
LEAST = 6  # columns, for the title's sake
SQUARE = 0.46  # inches
CELLS = 46  # a side of a square, at most: smaller ones would be specks
GAP = 0.12  # of a square
DARK = LinearSegmentedColormap.from_list("dark", ["#ffffff", "#9db4d6", "#1b3a6b", "#050a18"])
NORM = PowerNorm(0.5, vmin=0, vmax=1)  # the same for all: weights of a few percent still show


def draw_grid(dense: Patterns, sparse: Patterns, names: tuple[str, str]) -> Figure:
    """Two panels of squares, one a head in layer-then-head order: query down, key across."""
    most = max(len(dense.heads), len(sparse.heads), 1)
    columns, rows = min(PER_ROW, max(most, LEAST)), math.ceil(most / PER_ROW)
    width, height = (columns * (1 + GAP) - GAP) * SQUARE, (rows * (1 + GAP) - GAP) * SQUARE
    margin, title = 0.15, 0.38
    size = (2 * width + 3 * margin, height + title + margin)
    figure = Figure(figsize=size)
    for number, (side, name) in enumerate(zip((dense, sparse), names, strict=True)):
        left = margin + number * (width + margin)
        axes = figure.add_axes((left / size[0], margin / size[1], width / size[0], height / size[1]))
        draw_side(axes, side, columns, rows)
        axes.set_title(plain(caption(side, name)), loc="left", pad=5)
    return figure


def caption(side: Patterns, name: str) -> str:
    count = f"{len(side.heads)} head{'' if len(side.heads) == 1 else 's'}"
    return f"{name}: {count}" if side.reached else f"{name}: 90% not reached, all {count}"


def draw_side(axes: Axes, side: Patterns, columns: int, rows: int) -> None:
    step = 1 + GAP
    axes.set_axis_off()
    for place, ((layer, head), pattern) in enumerate(zip(side.heads, side.patterns, strict=True)):
        x, y = place % PER_ROW * step, place // PER_ROW * step
        axes.imshow(
            visible_cells(pattern),
            cmap=DARK,
            norm=NORM,
            extent=(x, x + 1, y + 1, y),
            interpolation="nearest",
            aspect="auto",
            zorder=1,
        )
        frame = Rectangle((x, y), 1, 1, fill=False, edgecolor="0.75", linewidth=0.4, zorder=2, clip_on=False)
        axes.add_patch(frame)
        # Above the diagonal nothing is ever attended to: there is room for the label.
        axes.text(x + 0.96, y + 0.05, f"L{layer}H{head}", ha="right", va="top", fontsize=5, zorder=3)
    axes.set_xlim(0, columns * step - GAP)
    axes.set_ylim(rows * step - GAP, 0)


def visible_cells(pattern: np.ndarray) -> np.ndarray:
    """A pattern in few enough cells to be seen: each has the largest weight of the edges in it."""
    starts = np.arange(0, len(pattern), math.ceil(len(pattern) / CELLS))
    cells: np.ndarray = np.maximum.reduceat(np.maximum.reduceat(pattern, starts, axis=0), starts, axis=1)
    return cells
