"""Dense against sparse: explained effect against units kept, one panel a task, the multiplier between the curves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from gossamer.comparison.multiplier import Multiplier, times
from gossamer.comparison.stored import Stored
from gossamer.figures.style import PAIRS, plain

LEVEL = 0.9
PER_ROW = 4
QUANTISED = re.compile(r"([.-](I?Q\d\w*|B?F16|F32))?\.gguf$", re.IGNORECASE)  # how a GGUF file was made


@dataclass(frozen=True, eq=False)
class Drawn:
    """A panel to be drawn."""

    title: str
    names: tuple[str, str]  # dense, sparse
    circuits: tuple[Stored, Stored]
    multiplier: Multiplier
    colours: tuple[str, str]


def pair_colours(models: Sequence[str]) -> list[tuple[str, str]]:
    """Two colours for each panel: panels of one dense model share theirs."""
    order = list(dict.fromkeys(models))
    return [PAIRS[order.index(model) % len(PAIRS)] for model in models]


def model_label(name: str) -> str:
    """A short name for a legend."""
    if name.startswith("bundled:"):
        kind = name.removeprefix("bundled:").removesuffix("-sparse")
        return {"gpt2": "GPT-2 (bundled)", "olmo": "OLMo (bundled)"}.get(kind, kind)
    short = QUANTISED.sub("", Path(name).name).removesuffix("-hf") or name
    return short if len(short) <= 24 else short[:23] + "…"


def draw_panels(panels: Sequence[Drawn]) -> Figure:
    """Panels of one measure in rows of four. Names stand in the first panel of a pair of models."""
    columns = min(PER_ROW, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(2.55 * columns, 2.15 * rows), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    named = set()
    for axes, panel in zip(every, panels):
        draw_panel(axes, panel)
        if (panel.names, panel.colours) not in named:
            axes.legend(loc="lower right", handlelength=1.2, borderaxespad=0.2)
        named.add((panel.names, panel.colours))
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    return figure


def draw_panel(axes: Axes, panel: Drawn) -> None:
    units = panel.circuits[0].units
    log = units == "edges"
    low, high = 0.0, 1.0
    for circuit, name, colour in zip(panel.circuits, panel.names, panel.colours, strict=True):
        start = 1 if log else 0  # there is no 0 on a logarithmic axis
        ks, effect = circuit.ks[start:], circuit.effect[start:]
        bottom, top = circuit.curve.band()
        axes.fill_between(ks, bottom[start:], top[start:], color=colour, alpha=0.2, linewidth=0)
        axes.plot(ks, effect, color=colour, label=plain(name))
        low, high = min(low, np.nanmin(bottom[start:])), max(high, np.nanmax(top[start:]))
    axes.set_title(plain(panel.title), loc="left")
    axes.set_ylabel("Explained Effect")
    axes.set_ylim(max(low, -1.0) - 0.06, min(high, 2.0) + 0.14)  # room for the multiplier
    axes.grid(axis="y", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    scale_axes(axes, units, max(circuit.total for circuit in panel.circuits))
    draw_multiplier(axes, panel.multiplier, log=log)


def scale_axes(axes: Axes, units: str, largest: int) -> None:
    """The axes of a curve: up to `largest` units, on a logarithmic axis for edges; effect at 0, a half and 1."""
    axes.set_xlabel(f"Number of {units.capitalize()} Kept")
    axes.set_yticks([0, 0.5, 1])
    if units == "edges":
        axes.set_xscale("log")
        axes.set_xlim(1, largest)
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, largest)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def draw_multiplier(axes: Axes, found: Multiplier, *, log: bool) -> None:
    """A dashed line at 0.9 from one curve to the other, with the multiplier over it."""
    left, right = axes.get_xlim()
    if found.dense is None or found.sparse is None:
        ends = (left, right)
    else:
        ends = (max(min(found.dense, found.sparse), left), max(found.dense, found.sparse))
        axes.plot(ends, [LEVEL, LEVEL], color="black", linewidth=0.9, linestyle=(0, (3, 2)), zorder=4)
    middle = math.sqrt(ends[0] * ends[1]) if log else sum(ends) / 2
    at = axes.transData.transform((middle, 0))[0]
    place = axes.transAxes.inverted().transform((at, 0))[0]
    half = 0.036 * len(multiplier_text(found)) / 2  # of the panel's width: the text stays inside
    axes.text(
        min(max(place, half), 1 - half),
        0.995,
        multiplier_text(found),
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize=7,
    )


def multiplier_text(found: Multiplier) -> str:
    if found.value is None:
        short = [name for name, k in (("dense", found.dense), ("sparse", found.sparse)) if k is None]
        return f"90% not reached ({', '.join(short)})"
    low, high = found.interval
    between = f"{times(low)} to {times(high)}" if math.isfinite(high) else f"≥ {times(low)}"
    return f"{times(found.value)}x ({between})"
