"""One look for all figures: fonts, lines, colours, and the files they are saved to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from gossamer.files import write_whole

# Okabe and Ito: told apart by colour-blind eyes too.
BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#000000",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK)
PAIRS = ((BLUE, ORANGE), (GREEN, PINK), (SKY, RED))  # dense and sparse of each pair of models

KINDS = ("png", "pdf", "svg")

RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "gossamer",  # the same figure is the same file
}


def save(draw: Callable[[], Figure], *paths: Path) -> None:
    """Draw a figure in the common style and write it to `paths`, whose suffixes say how."""
    with matplotlib.rc_context(RC):
        figure = draw()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once: every file is the same figure
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, partial(write, figure, path.suffix.removeprefix(".").lower()))


def write(figure: Figure, kind: str, path: Path) -> None:
    undated = {"png": None, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    figure.savefig(path, dpi=200, format=kind, metadata=undated)


def plain(text: str) -> str:
    """Text as it is: a dollar sign would start matplotlib's mathematics."""
    return text.replace("$", r"\$")
