"""Circuits of one model, and the tasks they are asked on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gossamer.cli.options import model_options, scoring_options
from gossamer.errors import GossamerError
from gossamer.screen import describe, duration, note, progress_bar


@click.command()
@click.argument("model")
@click.option("--task", required=True, help="greater-than, ioi, docstring, ioi-long, induction, or a .jsonl file")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for the results")
@click.option("--units", type=click.Choice(["heads", "edges"]), default="heads", show_default=True)
@click.option(
    "--ranking",
    type=click.Choice(["sentence", "dataset", "random"]),
    default="sentence",
    show_default=True,
    help="within each prompt, one for all prompts, or by chance",
)
@scoring_options("gradient")
@click.option("--prompts", type=int, help="how many (default: 100, or all of a file)")
@click.option("--seed", type=int, default=0, show_default=True, help="of the prompts and the random ranking")
@click.option("--same-positions", is_flag=True, help="only prompts of one template and length")
@click.option(
    "--sizes",
    type=click.Choice(["every", "few"]),
    default="every",
    show_default=True,
    help="the sizes of circuits to measure; few takes a fraction of the time",
)
@click.option("--ig-steps", type=int, default=5, show_default=True, help="steps of --importance ig")
@click.option("--batch", type=int, help="prompts at once (default: as many as fit)")
@click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object, last")
@click.option("--force", is_flag=True, help="replace another run in the folder")
@model_options
def circuits(
    model: str,
    task: str,
    out: Path,
    prompts: int | None,
    seed: int,
    same_positions: bool,
    batch: int | None,
    as_json: bool,
    force: bool,
    units: str,
    ranking: str,
    importance: str,
    sign: str,
    replace: str,
    ig_steps: int,
    sizes: str,
    **loading: Any,
) -> None:
    """Rank heads or attention edges on a task, keep the k best for every k, and measure the explained effect.

    MODEL is a hub id, a folder, a .gguf file, or bundled:induction. If the folder of --out holds an interrupted run of
    the same command, it goes on.

    \b
    Examples:
      gossamer circuits bundled:induction --task induction --out runs/first
      gossamer circuits gpt2 --task ioi --units edges --out runs/gpt2-ioi-edges
      gossamer circuits allenai/OLMo-7B-hf --task docstring --ranking dataset --dtype bfloat16 --out runs/olmo
      gossamer circuits ./my-model --task mine.jsonl --importance exact --json --out runs/mine

    \b
    The folder gets: curve.parquet (prompt, k, metric, explained_effect), scores.safetensors, prompts.jsonl, curve.png,
    and circuit.json, which says all that was asked, what came out, and which versions ran.
    """
    import gossamer
    from gossamer.circuits.discover import Settings, cost_of_exact
    from gossamer.circuits.runs import request, run_folder

    if batch is not None and batch < 1:
        raise GossamerError(f"a batch of {batch} prompts: give at least 1")
    loaded = gossamer.load(model, **loading)
    chosen = gossamer.prompts(task, loaded, prompts, seed=seed, same_positions=same_positions)
    settings: dict[str, Any] = {
        "units": units,
        "ranking": ranking,
        "importance": importance,
        "sign": sign,
        "replace": replace,
        "ig_steps": ig_steps,
        "seed": seed,
        "sizes": sizes,
    }
    Settings(**settings).check(chosen)
    with run_folder(out, request(loaded, chosen, settings), force=force) as parts:
        if importance == "exact" and ranking != "random":
            patches, seconds = cost_of_exact(loaded, chosen, units)
            note(f"exact importance: at most {patches:,} patches, about {duration(seconds)}")
        with progress_bar() as progress:
            result = gossamer.circuit(loaded, chosen, batch=batch, parts=parts, progress=progress, **settings)
        result.save(out)
    summary = result.summary()
    describe(summary, out)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="the .png, .pdf or .svg file to write")
def plot(runs: tuple[Path, ...], out: Path) -> None:
    """Draw the curves of several runs side by side: a panel for each task and unit, a line for each run.

    \b
    Example:
      gossamer plot runs/ioi-exact runs/ioi-random --out ioi.png
    """
    from gossamer.circuits.circuit import SUMMARY
    from gossamer.figures.curves import draw_curves
    from gossamer.figures.style import KINDS, save

    summaries = []
    for run in runs:
        try:
            summaries.append(json.loads((run / SUMMARY).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise GossamerError(f"{run} holds no finished run: {error}") from error
    kind = out.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise GossamerError(f"can't draw a {out.suffix or 'file without a suffix'}: name a .png, .pdf or .svg file")
    try:
        save(lambda: draw_curves(summaries), out)
    except (KeyError, TypeError, AttributeError) as error:
        raise GossamerError(f"a {SUMMARY} of these runs is not that of a circuit: {error!r}") from error


@click.group(invoke_without_command=True)
@click.pass_context
def tasks(context: click.Context) -> None:
    """List the tasks, or show some of their prompts.

    \b
    Examples:
      gossamer tasks
      gossamer tasks show ioi --model gpt2 -n 3
    """
    if context.invoked_subcommand is not None:
        return
    from gossamer.tasks import TASKS

    for name, task in TASKS.items():
        click.echo(f"{name:14}{task.metric:24}{task.about}")
    click.echo(f"{'FILE.jsonl':14}{'logit difference':24}your own: clean, corrupted, answers, wrong on every line")


@tasks.command()
@click.argument("task")
@click.option("--model", required=True, help="whose tokenizer: hub id, folder, or bundled name")
@click.option("-n", type=int, help="how many (default: 3, or all of a file)")
@click.option("--seed", type=int, default=0, show_default=True)
@model_options
def show(
    task: str,
    model: str,
    n: int | None,
    seed: int,
    **loading: Any,
) -> None:
    """Show prompts of a task as a model's tokens, the ones that differ in brackets.

    \b
    Example:
      gossamer tasks show ioi --model gpt2 -n 3
    """
    import gossamer

    loaded = gossamer.load(model, **loading)
    chosen = gossamer.prompts(task, loaded, 3 if n is None and not task.endswith(".jsonl") else n, seed=seed)
    for pair in chosen.pairs:
        for name, ids, others in (
            ("clean", pair.clean, pair.corrupted),
            ("corrupted", pair.corrupted, pair.clean),
        ):
            tokens = loaded.tokenizer.convert_ids_to_tokens(list(ids))
            marked = [t if a == b else f"[{t}]" for t, a, b in zip(tokens, ids, others, strict=True)]
            click.echo(f"{name:10}{' '.join(marked)}")
        click.echo(f"{'answers':10}{list(pair.pair.answers)}")
        click.echo(f"{'wrong':10}{list(pair.pair.wrong)}")
        click.echo(f"{'tokens':10}{len(pair)}, template {pair.pair.template or '-'}\n")
    if chosen.dropped:
        note("did not fit: " + ", ".join(f"{count} {reason}" for reason, count in chosen.dropped.items()))
