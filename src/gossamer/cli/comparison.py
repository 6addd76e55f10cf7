"""Dense against sparse, the figures and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gossamer.cli.options import Command, model_options, scoring_options, with_options
from gossamer.errors import GossamerError
from gossamer.screen import circuit_bar, describe_multipliers, note, training_bar


def choice_options(command: Command) -> Command:
    """How circuits are found and where they go, the same for one pair and for several."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--prompts",
            type=int,
            help="of each task (default: 100, or all of a file; reproduce of the bundled models 30, with --quick 12)",
        ),
        click.option(
            "--sizes",
            type=click.Choice(["every", "few"]),
            help="the sizes of circuits to measure (default: every; reproduce of the bundled models few)",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="of the prompts"),
        scoring_options("ig"),
        click.option("--controls/--no-controls", default=True, help="measure the controls too (default)"),
        click.option("--all", "every", is_flag=True, help="the multiplier under every choice of importance, sign, ..."),
        click.option("--force", is_flag=True, help="replace another run in the folder"),
        click.option("--json", "as_json", is_flag=True, help="print the multipliers as JSON, last"),
        model_options,
    ]
    return with_options(command, options)


LOADING = ("device", "dtype", "revision", "first_token", "trust_remote_code")


@click.command()
@click.option("--quick", is_flag=True, help="use the sparse models that come with the package, and fewer prompts")
@click.option(
    "--out", default=Path("runs/reproduce"), show_default=True, type=click.Path(path_type=Path), help="folder"
)
@click.option(
    "--panel",
    "panels",
    multiple=True,
    metavar="TASK=DENSE,SPARSE[,TUNED]",
    help="a task and the two models to compare on it, in place of the bundled ones, and as a control the dense one "
    "fine-tuned with no penalty; may be given several times",
)
@choice_options
def reproduce(quick: bool, out: Path, panels: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Dense model, sparse twin, circuits on four tasks, figures: the whole method at once.

    Without --panel it post-trains the two bundled models and compares each with its twin on two tasks. If the folder
    holds an interrupted run of the same command, it goes on.

    \b
    Examples:
      gossamer reproduce --quick
      gossamer reproduce --out runs/full
      gossamer reproduce --panel ioi=gpt2,./sparse-gpt2 --panel docstring=./olmo,./sparse-olmo --out runs/real
    """
    from gossamer.comparison.reproduce import reproduce
    from gossamer.comparison.run import Panel

    if quick and panels:
        raise GossamerError("--quick is for the bundled models: leave out --quick or --panel")
    loading = {name: options.pop(name) for name in LOADING}
    chosen = [Panel.parse(text) for text in panels]
    table = reproduce(
        out, chosen or None, quick=quick, loading=loading, bar=circuit_bar, training_bar=training_bar, **options
    )
    finish(table, out, as_json)


@click.command()
@click.argument("dense")
@click.argument("sparse")
@click.option("--task", "tasks", multiple=True, required=True, help="a task or .jsonl file; may be given several times")
@click.option("--tuned", help="the dense model fine-tuned with no penalty (sparsify --no-penalty), as a control")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder")
@choice_options
def compare(
    dense: str,
    sparse: str,
    tasks: tuple[str, ...],
    tuned: str | None,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """How many heads and edges a task takes in a model and in its sparse twin.

    \b
    Examples:
      gossamer compare bundled:gpt2 bundled:gpt2-sparse --task ioi --out runs/ioi
      gossamer compare gpt2 ./sparse-gpt2 --task ioi --task greater-than --prompts 200 --out runs/gpt2
    """
    from gossamer.comparison.run import Panel
    from gossamer.comparison.run import compare as run_comparison

    loading = {name: options.pop(name) for name in LOADING}
    table = run_comparison(
        [Panel(task, dense, sparse, tuned) for task in tasks], out, loading=loading, bar=circuit_bar, **options
    )
    finish(table, out, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def figures(run: Path) -> None:
    """Draw the figures and the report of a run of reproduce or compare again, from its files alone.

    \b
    Example:
      gossamer figures runs/reproduce
    """
    from gossamer.comparison.run import redraw

    describe_multipliers(redraw(run))
    note(f"drawn into {run / 'figures'}, and {run / 'report.html'}")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def report(run: Path) -> None:
    """Write RUN/report.html, the page to explore a run of reproduce or compare: one file, no network.

    Figures are taken as they are in the run; `gossamer figures` draws them again, and writes the report too.

    \b
    Examples:
      gossamer report runs/reproduce
      gossamer report runs/ioi && gossamer open runs/ioi
    """
    from gossamer.report.page import write_report

    path = write_report(run)
    note(f"{path}: {path.stat().st_size / 1e6:.1f} MB; gossamer open {run} shows it")


@click.command("open")
@click.argument("run", type=click.Path(path_type=Path))
def open_report(run: Path) -> None:
    """Open the report of a run in a browser; it is written first if it is not there.

    \b
    Example:
      gossamer open runs/reproduce
    """
    import webbrowser

    path = run / "report.html"
    if not path.exists():
        from gossamer.report.page import write_report

        write_report(run)
    if not webbrowser.open(path.resolve().as_uri()):
        raise GossamerError(f"no browser was found: open {path.resolve()} in one")


def finish(table: list[Any], out: Path, as_json: bool) -> None:
    describe_multipliers(table)
    about = {
        "report.html": f"the page to explore it (gossamer open {out})",
        "multipliers.csv": "the table",
        "controls.md": "the controls",
        "choices.csv": "the multiplier under every choice",
        "figures": "the figures",
        "panels": "every circuit",
    }
    for name, what in about.items():
        if (out / name).exists():
            note(f"{out / name}: {what}")
    if as_json:
        click.echo(json.dumps([entry.as_json() for entry in table]))
