"""A post-training run: loss, edges and multiplier against the step, and loss against edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"


def draw_training(log: Sequence[dict[str, Any]], tau: float, base_loss: float, path: Path, kind: str) -> None:
    """From the rows of a run's log, as a "png", "pdf" or "svg"."""
    steps = [row for row in log if "expected_edges" in row]
    evaluated = [row for row in log if "held_out_loss" in row]
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    (loss, edges), (multiplier, trade) = figure.subplots(2, 2)
    at = [row["step"] for row in evaluated]

    loss.plot(at, [row["held_out_loss"] for row in evaluated], color=BLUE, linewidth=1.2, label="held-out loss")
    bounds(loss, tau, base_loss)
    label(loss, "Step", "Loss (nats)")

    edges.plot(
        [row["step"] for row in steps],
        [row["expected_edges"] for row in steps],
        color=ORANGE,
        linewidth=0.6,
        label="expected",
    )
    edges.plot(at, [row["edges"] for row in evaluated], color=BLUE, linewidth=1.2, label="open")
    edges.set_yscale("log")
    ticks(edges.yaxis, percent)
    label(edges, "Step", "Attention edges")

    multiplier.plot([row["step"] for row in steps], [row["lambda"] for row in steps], color=GREEN, linewidth=1)
    multiplier.set_yscale("log")
    ticks(multiplier.yaxis, "{:g}".format)
    label(multiplier, "Step", "Multiplier λ")

    trade.plot(
        [row["edges"] for row in evaluated],
        [row["held_out_loss"] for row in evaluated],
        color=BLUE,
        linewidth=0.8,
        marker=".",
        markersize=3,
    )
    trade.set_xscale("log")
    ticks(trade.xaxis, percent)
    bounds(trade, tau, base_loss)
    label(trade, "Attention edges open", "Held-out loss (nats)")
    figure.savefig(path, dpi=200, format=kind)


def bounds(axes: Axes, tau: float, base_loss: float) -> None:
    axes.axhline(tau, color="black", linewidth=0.8, linestyle="--", label="bound τ")
    axes.axhline(base_loss, color="0.6", linewidth=0.8, linestyle=":", label="base model")


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False)


def ticks(axis: Axis, text: Callable[[float], str]) -> None:
    """Powers of ten of a logarithmic axis, and the more between them the less it spans."""
    low, high = sorted(axis.get_view_interval())
    between = (1.0,) if high > 200 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 6, 8)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _position: text(value)))


def percent(share: float) -> str:
    return f"{100 * share:g}%"
