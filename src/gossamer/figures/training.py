"""Post-training runs: loss, edges and multiplier against the step, and loss against edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gossamer.comparison.trained import Training
from gossamer.figures.panels import model_label
from gossamer.figures.style import BLUE, GREEN, ORANGE, PAIRS, plain


def draw_trainings(runs: Sequence[Training]) -> Figure:
    """Several runs, a row each: held-out loss with its bound, and the share of open edges."""
    figure = Figure(figsize=(6.4, 2.1 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 2, squeeze=False)
    for (loss, edges), run, (_, colour) in zip(rows, runs, (PAIRS[i % len(PAIRS)] for i in range(len(runs)))):
        at = [row["step"] for row in run.evaluations]
        loss.plot(at, [row["held_out_loss"] for row in run.evaluations], color=colour, label="held-out loss")
        bounds(loss, run.tau, run.base_loss)
        label(loss, "Step", "Loss (nats)")
        loss.set_title(plain(f"Sparse {model_label(run.base)}"), loc="left")
        edges.plot(at, shares(run.evaluations), color=colour)
        logarithmic(edges, "y", percent)
        label(edges, "Step", "Attention edges open")
        for axes in (loss, edges):
            axes.axvline(run.kept_step, color="0.8", linewidth=0.8, zorder=0)
    return figure


def draw_training(log: Sequence[dict[str, Any]], tau: float, base_loss: float, *, gates: bool = True) -> Figure:
    """One run, from the rows of its log. Without gates there is only a loss to show."""
    steps = [row for row in log if "expected_edges" in row]
    evaluated = [row for row in log if "held_out_loss" in row]
    at = [row["step"] for row in evaluated]
    if not gates:
        figure = Figure(figsize=(3.6, 2.6), layout="constrained")
        loss = figure.subplots()
        loss.plot(at, [row["held_out_loss"] for row in evaluated], color=BLUE, linewidth=1.2, label="held-out loss")
        loss.axhline(base_loss, color="0.6", linewidth=0.8, linestyle=":", label="base model")
        label(loss, "Step", "Loss (nats)")
        return figure
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    (loss, edges), (multiplier, trade) = figure.subplots(2, 2)

    loss.plot(at, [row["held_out_loss"] for row in evaluated], color=BLUE, linewidth=1.2, label="held-out loss")
    if any(row["allowed"] > tau - base_loss + 1e-9 for row in steps):
        allowed = [base_loss + row["allowed"] for row in steps]
        loss.plot([row["step"] for row in steps], allowed, color="0.4", linewidth=0.6, label="allowed so far")
    bounds(loss, tau, base_loss)
    label(loss, "Step", "Loss (nats)")

    edges.plot(
        [row["step"] for row in steps],
        [row["expected_edges"] for row in steps],
        color=ORANGE,
        linewidth=0.6,
        label="expected",
    )
    edges.plot(at, shares(evaluated), color=BLUE, linewidth=1.2, label="open")
    logarithmic(edges, "y", percent)
    label(edges, "Step", "Attention edges")

    multiplier.plot([row["step"] for row in steps], [row["lambda"] for row in steps], color=GREEN, linewidth=1)
    logarithmic(multiplier, "y", "{:g}".format)
    label(multiplier, "Step", "Multiplier λ")

    trade.plot(
        shares(evaluated),
        [row["held_out_loss"] for row in evaluated],
        color=BLUE,
        linewidth=0.8,
        marker=".",
        markersize=3,
    )
    logarithmic(trade, "x", percent)
    bounds(trade, tau, base_loss)
    label(trade, "Attention edges open", "Held-out loss (nats)")
    return figure


def bounds(axes: Axes, tau: float, base_loss: float) -> None:
    axes.axhline(tau, color="black", linewidth=0.8, linestyle="--", label="bound τ")
    axes.axhline(base_loss, color="0.6", linewidth=0.8, linestyle=":", label="base model")


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=1)  # over the line of what was kept


def shares(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Of open edges; none at all has no place on a logarithmic axis."""
    return [row["edges"] or float("nan") for row in rows]


def logarithmic(axes: Axes, which: str, text: Callable[[float], str]) -> None:
    """Make the axis of what was drawn logarithmic, unless all of it is 0."""
    if any((np.asarray(getattr(line, f"get_{which}data")()) > 0).any() for line in axes.lines):
        axes.set(**{f"{which}scale": "log"})
        ticks(getattr(axes, f"{which}axis"), text)


def ticks(axis: Axis, text: Callable[[float], str]) -> None:
    """Powers of ten of a logarithmic axis, and the more between them the less it spans."""
    low, high = sorted(axis.get_view_interval())
    between = (1.0,) if high > 200 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _position: text(value)))


def percent(share: float) -> str:
    return f"{100 * share:g}%"
