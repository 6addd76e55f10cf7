"""The command line: parse, call one function, write files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
from safetensors import SafetensorError

from gossamer.errors import GossamerError
from gossamer.screen import describe, describe_sparse, duration, note, progress_bar, training_bar
from gossamer.training.settings import Settings

DEFAULT = Settings()

# torch and transformers take seconds to import: what needs them is imported in the command, so that --help is instant.

Command = Callable[..., None]


def model_options(command: Command) -> Command:
    """How a model is loaded, the same in every command: the arguments of `gossamer.load`."""
    options = [
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="auto, cpu, cuda, cuda:N, mps, or spread (GPUs)",
        ),
        click.option(
            "--dtype",
            default="auto",
            help="auto (float32 on a CPU, else the model's own), float32, bfloat16, float16",
        ),
        click.option("--revision", help="branch, tag or commit of a hub model"),
        click.option(
            "--first-token", default="auto", help="token before every prompt: auto, none, or the token itself"
        ),
        click.option("--trust-remote-code", is_flag=True, help="run code that comes with the model"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"max_content_width": 120})
@click.version_option(package_name="gossamer")
def app() -> None:
    """Make a transformer's attention sparse and read its circuits."""


@app.command()
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
@click.option(
    "--importance",
    type=click.Choice(["gradient", "exact", "ig"]),
    default="gradient",
    show_default=True,
    help="how a unit is scored: to first order, by patching each, or by gradients along the path",
)
@click.option(
    "--sign",
    type=click.Choice(["absolute", "signed"]),
    default="absolute",
    show_default=True,
    help="rank by |score|, or what helps first",
)
@click.option(
    "--replace",
    type=click.Choice(["corrupted", "mean", "zero"]),
    default="corrupted",
    show_default=True,
    help="what removed units become",
)
@click.option("--prompts", type=int, help="how many (default: 100, or all of a file)")
@click.option("--seed", type=int, default=0, show_default=True, help="of the prompts and the random ranking")
@click.option("--same-positions", is_flag=True, help="only prompts of one template and length")
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
    **loading: Any,
) -> None:
    """Rank heads or attention edges on a task, keep the k best for every k, and measure the explained effect.

    MODEL is a hub id, a folder, or bundled:induction. If the folder of --out holds an interrupted run of the same
    command, it goes on.

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


@app.command()
@click.argument("model")
@click.option("--data", required=True, help="text file, .jsonl, .parquet, hub data set id, or self")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for the sparse model")
@click.option(
    "--margin", type=float, default=DEFAULT.margin, show_default=True, help="nats above the base model's held-out loss"
)
@click.option("--tau", type=float, help="bound on the held-out loss, in place of base loss + margin")
@click.option("--steps", type=int, default=DEFAULT.steps, show_default=True)
@click.option("--batch", type=int, default=DEFAULT.batch, show_default=True, help="blocks a step, over all processes")
@click.option(
    "--accumulate",
    type=int,
    default=DEFAULT.accumulate,
    show_default=True,
    help="parts the batch is run in, to save memory",
)
@click.option("--block", type=int, help="tokens of a block (default: the model's context, at most 1024)")
@click.option(
    "--held-out", type=int, default=DEFAULT.held_out, show_default=True, help="blocks kept from training, to judge on"
)
@click.option(
    "--every", type=int, default=DEFAULT.every, show_default=True, help="steps between evaluations and checkpoints"
)
@click.option(
    "--distill/--no-distill", default=None, help="train on KL to the base model (default for self), or on the text"
)
@click.option("--lora", type=int, metavar="RANK", help="train adapters of this rank, not the weights")
@click.option("--merge", is_flag=True, help="merge the adapters into the weights at the end")
@click.option(
    "--train",
    type=click.Choice(["all", "body", "attention"]),
    default=DEFAULT.train,
    show_default=True,
    help="which weights: all, all but the embeddings, or attention's",
)
@click.option("--bias", type=float, help="where every gate's bias starts (default: calibrated for each head)")
@click.option("--learn-bias/--fix-bias", default=True, help="one learned bias a head (default), or fixed ones")
@click.option("--noise", type=float, default=DEFAULT.noise, show_default=True, help="of the drawn gates")
@click.option("--renormalise", is_flag=True, help="softmax over the open keys only")
@click.option("--lr", type=float, help="learning rate (default: found in a few steps)")
@click.option("--bias-lr", type=float, default=DEFAULT.bias_lr, show_default=True)
@click.option("--warmup", type=int, default=DEFAULT.warmup, show_default=True, help="steps")
@click.option("--schedule", default=DEFAULT.schedule, show_default=True, help="linear, cosine, constant")
@click.option("--optimiser", default=DEFAULT.optimiser, show_default=True, help="adamw, adafactor, sgd")
@click.option("--weight-decay", type=float, default=DEFAULT.weight_decay, show_default=True)
@click.option("--clip", type=float, default=DEFAULT.clip, show_default=True, help="of the gradient's norm")
@click.option("--dual-rate", type=float, default=DEFAULT.dual_rate, show_default=True, help="of the multiplier")
@click.option("--precision", default=DEFAULT.precision, show_default=True, help="no, bf16: what training computes in")
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True)
@click.option("--column", default="text", show_default=True, help="of the data, the one with the text")
@click.option("--track", help="tensorboard, wandb, trackio")
@click.option("--resume", is_flag=True, help="go on with an interrupted run, if there is one")
@click.option("--force", is_flag=True, help="replace another run in the folder")
@click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object, last")
@model_options
def sparsify(
    model: str,
    data: str,
    out: Path,
    as_json: bool,
    resume: bool,
    force: bool,
    track: str | None,
    column: str,
    dtype: str,
    **options: Any,
) -> None:
    """Post-train a model so that almost all of its attention edges are gone at unchanged loss.

    MODEL is a hub id or a folder. The folder of --out becomes the sparse model, for `gossamer circuits` and
    `gossamer.load`; it is the sparsest state whose held-out loss met the bound. Exit code 1 says that none did.

    \b
    Examples:
      gossamer sparsify gpt2 --data Skylion007/openwebtext --out sparse-gpt2
      gossamer sparsify ./model --data text.txt.gz --block 256 --steps 2000 --out sparse --resume
      gossamer sparsify ./model --data self --margin 0.02 --out sparse
      gossamer sparsify allenai/OLMo-7B-hf --data allenai/dolma --lora 16 --precision bf16 --out sparse-olmo
      accelerate launch -m gossamer.cli sparsify gpt2 --data text.jsonl --batch 64 --out sparse-gpt2
    """
    import gossamer

    loading = {name: options.pop(name) for name in ("device", "revision", "first_token", "trust_remote_code")}
    Settings(**options).check()  # before minutes are spent on loading
    if dtype == "auto" and options["lora"] is None:
        dtype = "float32"
    loaded = gossamer.load(model, dtype=dtype, **loading)
    with training_bar(options["steps"]) as (progress, report):
        result = gossamer.sparsify(
            loaded,
            data,
            out,
            column=column,
            resume=resume,
            force=force,
            track=track,
            progress=progress,
            report=report,
            **options,
        )
    if not result:  # another process speaks
        return
    describe_sparse(result["evaluation"], out, tau=result["tau"], step=result["kept_step"])
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))


@app.command()
@click.argument("model")
@click.option("--against", required=True, help="the base model")
@click.option(
    "--data", required=True, help="text file, .jsonl, .parquet, hub data set id, or self: drawn from the base"
)
@click.option("--block", type=int, help="tokens of a block (default: that of the training run, or the model's context)")
@click.option("--held-out", type=int, default=64, show_default=True, help="blocks of the data's held-out part")
@click.option("--batch", type=int, default=8, show_default=True, help="blocks at once")
@click.option("--seed", type=int, default=0, show_default=True, help="of --data self")
@click.option("--column", default="text", show_default=True, help="of the data, the one with the text")
@click.option("--by-head", is_flag=True, help="show the edges of every head")
@click.option("--json", "as_json", is_flag=True, help="print the result as one JSON object, last")
@model_options
def evaluate(
    model: str,
    against: str,
    data: str,
    block: int | None,
    held_out: int,
    batch: int,
    seed: int,
    column: str,
    by_head: bool,
    as_json: bool,
    **loading: Any,
) -> None:
    """What a sparse model has left: loss, open edges, KL to its base and agreement with it, on held-out text.

    Every tenth document of the data is held out: training never sees it, however many blocks are asked for here.

    \b
    Example:
      gossamer evaluate sparse-gpt2 --against gpt2 --data Skylion007/openwebtext --json
    """
    import gossamer

    sparse = gossamer.load(model, **loading)
    base = gossamer.load(against, **loading)
    with progress_bar() as progress:
        result = gossamer.evaluate(
            sparse,
            base,
            data,
            block=block,
            held_out=held_out,
            batch=batch,
            seed=seed,
            column=column,
            progress=progress,
        )
    describe_sparse(result, Path(model), by_head=by_head)
    for warning in result["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))


@app.command()
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
    from gossamer.files import write_whole

    summaries = []
    for run in runs:
        try:
            summaries.append(json.loads((run / SUMMARY).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise GossamerError(f"{run} holds no finished run: {error}") from error
    kind = out.suffix.removeprefix(".").lower()
    if kind not in ("png", "pdf", "svg"):
        raise GossamerError(f"can't draw a {out.suffix or 'file without a suffix'}: name a .png, .pdf or .svg file")
    try:
        write_whole(out, lambda path: draw_curves(summaries, path, kind))
    except (KeyError, TypeError, AttributeError) as error:
        raise GossamerError(f"a {SUMMARY} of these runs is not that of a circuit: {error!r}") from error


@app.group(invoke_without_command=True)
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


def interrupted() -> NoReturn:
    sys.stderr.write("gossamer: interrupted; the same command goes on from here (sparsify: with --resume)\n")
    sys.exit(130)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What the user can mend is one line on standard error and exit code 2."""
    try:
        app.main(arguments, prog_name="gossamer", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except (GossamerError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        sys.stderr.write("gossamer: " + " ".join(message.split()) + "\n")
        sys.exit(getattr(error, "exit_code", 2))
    except (OSError, SafetensorError) as error:  # no space, no permission, a name too long
        if isinstance(error.__context__, KeyboardInterrupt):  # while a file was being closed
            interrupted()
        sys.stderr.write("gossamer: could not read or write: " + " ".join(str(error).split()) + "\n")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        interrupted()


if __name__ == "__main__":
    main()
