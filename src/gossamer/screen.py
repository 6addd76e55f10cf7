"""What a command shows on the screen: its progress, and its result."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gossamer.comparison.multiplier import Multiplier

screen = Console(stderr=True)  # standard output is for results


def describe(summary: dict[str, Any], out: Path) -> None:
    """The result on the screen."""
    task, model = summary["task"], summary["model"]
    k90, most = summary["k90"], summary["units_total"][1]
    how = f"{summary['ranking']} ranking"
    if summary["importance"] is not None:
        how += f", {summary['importance']} importance, {summary['sign']}"
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "model": f"{model['name']} ({model['type']}, {model['layers']} x {model['heads_per_layer']} heads)",
        "task": f"{task['name']}, {task['prompts']} prompts, seed {task['seed']}",
        "first token": model["first_token"] or "none",
        "metric": f"{task['metric']}: clean {summary['clean']:.3f}, corrupted {summary['corrupted']:.3f}, "
        f"{summary['accuracy']:.0%} answered right",
        "circuit": f"{summary['units']}, {how}, {summary['replace']} replacement",
        "k90": f"{k90:,} of {most:,} {summary['units']}" if k90 is not None else "not reached",
        "written to": str(out),
    }
    if task["dropped"]:
        rows["did not fit"] = ", ".join(f"{count} {reason}" for reason, count in task["dropped"].items())
    for name, value in rows.items():
        table.add_row(name, Text(value))
    screen.print(table)
    for warning in summary["warnings"]:
        note(f"warning: {warning}")


def describe_sparse(
    result: dict[str, Any], folder: Path, *, tau: float | None = None, step: int | None = None, by_head: bool = False
) -> None:
    """What is left, on the screen."""
    table = Table(show_header=False, box=None, pad_edge=False)
    bound = "" if tau is None else f", bound {tau:.4f}"
    rows = {
        "loss": f"{result['loss']:.4f} (base model {result['base_loss']:.4f}{bound})",
        "edges open": f"{result['edges']:.3%} (without the first token {result['edges_without_first']:.3%}, "
        f"without the diagonal too {result['edges_without_first_and_diagonal']:.3%})",
        "base model": f"KL {result['kl']:.4f}, same most likely token {result['top1_agreement']:.2%}",
        "measured on": f"{result['blocks']} held-out blocks of {result['block']} tokens",
    }
    if "edges_per_query" in result:
        shut = result["shut_heads"]
        total = sum(len(row) for row in result["edges_by_head"])
        rows["per query and head"] = f"{result['edges_per_query']:.3f} edges"
        rows["shut heads"] = f"{len(shut)} of {total}" + (f": {' '.join(shut[:12])}" if shut else "")
    if step is not None:
        rows["kept"] = f"step {step}"
        rows["written to"] = str(folder)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    screen.print(table)
    if by_head and "edges_by_head" in result:
        note("edges open by head, in percent")
        for layer, shares in enumerate(result["edges_by_head"]):
            # A line that is too long for the screen is broken, not cut.
            note(f"L{layer:<3}" + " ".join(f"H{head}={100 * share:.3g}" for head, share in enumerate(shares)))


def describe_multipliers(table: Sequence[Multiplier]) -> None:
    """k90 of dense and sparse and their quotient, a row for each task and measure."""
    from gossamer.comparison.multiplier import times

    shown = Table("task", "", "dense k90", "sparse k90", "multiplier", "95% interval", box=None, pad_edge=False)
    for entry in table:
        units, _, ranking = entry.measure.partition("_")
        value = "not reached" if entry.value is None else f"{times(entry.value)}x"
        ends = ["inf" if math.isinf(end) else "-" if math.isnan(end) else times(end) for end in entry.interval]
        k90s = ["not reached" if k is None else f"{k:,}" for k in (entry.dense, entry.sparse)]
        cells = [entry.task, f"{units}, {ranking}", *k90s, value, f"{ends[0]} to {ends[1]}"]
        shown.add_row(*(Text(cell) for cell in cells))
    screen.print(shown)
    for doubt in dict.fromkeys(f"{entry.task}, {doubt}" for entry in table for doubt in entry.doubts):
        note(f"warning: {doubt}")


@contextmanager
def circuit_bar(job: str) -> Iterator[Any]:
    """A bar for one circuit of many: gone when it is done, and a line left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=screen, transient=True) as bars:
        task = bars.add_task(escape(job), total=None)

        def progress(stage: str, done: int, total: int) -> None:
            bars.update(task, description=escape(f"{job}: {stage}"), completed=done, total=total)

        yield progress
    note(f"{job}: {duration(time.monotonic() - started)}")


@contextmanager
def dense_bar() -> Iterator[Callable[[int, int, float], None]]:
    """A bar for training from nothing."""
    columns = (
        TextColumn("training, loss {task.fields[loss]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen) as bars:
        task = bars.add_task("", total=None, loss="-")

        def report(step: int, steps: int, loss: float) -> None:
            bars.update(task, completed=step, total=steps, loss=f"{loss:.4f}")

        yield report


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A bar for each stage of a job."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen) as bars:
        stages: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done, total=total)

        yield progress


@contextmanager
def training_bar(steps: int, gates: bool = True) -> Iterator[tuple[Any, Any]]:
    """Bars for preparing, and one for training that shows where it stands; without gates there is no bound."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    first = os.environ.get("RANK", "0") == "0"  # of several processes, one speaks
    with Progress(*columns, console=screen, disable=not first) as bars:
        stages: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total, state="")
            bars.update(stages[stage], completed=done, total=total, visible=done < total)

        def report(tau: float, base: float) -> Callable[[int, dict[str, float]], None]:
            bound = f" tau {tau:.4f}" if gates else ""
            task = bars.add_task("training", total=steps, state=f"base {base:.4f}{bound}")
            shown: dict[str, str] = {}

            def step(number: int, values: dict[str, float]) -> None:
                if "held_out_loss" in values:
                    loss, edges = values["held_out_loss"], values["edges"]
                    shown["loss"] = f"loss {loss:.4f}" + (f"/{tau:.4f} edges {edges:.2%}" if gates else "")
                    if first:
                        left = f" (tau {tau:.4f}), edges open {edges:.3%}" if gates else f" (base model {base:.4f})"
                        note(f"step {number}: held-out loss {loss:.4f}{left}")
                else:
                    speed = f"{values['tokens_per_second']:.0f} tok/s"
                    shown["step"] = f"λ {values['lambda']:.3g} {speed}" if gates else speed
                bars.update(task, completed=number, state=" ".join(shown.values()))

            return step

        yield progress, report


def note(text: str) -> None:
    screen.print(Text(text))


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
