"""Sparse post-training, and what is left after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gossamer.cli.options import model_options
from gossamer.screen import dense_bar, describe_sparse, note, progress_bar, training_bar
from gossamer.training.settings import MATCH, PREDICT, TEMPERATURE, Settings

DEFAULT = Settings()


@click.command()
@click.argument("model")
@click.option("--data", required=True, help="text file, .jsonl, .parquet, hub data set id, self or bundled")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for the sparse model")
@click.option(
    "--margin", type=float, default=DEFAULT.margin, show_default=True, help="nats above the base model's held-out loss"
)
@click.option("--slack", type=float, default=DEFAULT.slack, show_default=True, help="margins allowed at first")
@click.option(
    "--slack-ends", type=float, default=DEFAULT.slack_ends, show_default=True, help="share of the steps it lasts"
)
@click.option("--aim", type=float, default=DEFAULT.aim, show_default=True, help="margins allowed when it has ended")
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
    "--distill/--no-distill",
    default=None,
    help="train on what the base model makes of the text (default), or on the text",
)
@click.option(
    "--match",
    type=float,
    help=f"share of the base model's states in what is trained on (default: {MATCH:g} with KL, 0 with text)",
)
@click.option(
    "--predict",
    type=int,
    metavar="N",
    help=f"train on one prediction in N, each in turn (default: {PREDICT} where states are matched, else 1)",
)
@click.option(
    "--penalty/--no-penalty", default=True, help="on edges; without, the model is only fine-tuned: the control"
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
@click.option(
    "--temperature",
    type=float,
    help=f"of the gates' sigmoids in training (default: {TEMPERATURE:g}; 1, the published one, with --noise)",
)
@click.option("--renormalise", is_flag=True, help="softmax over the open keys only")
@click.option("--lr", type=float, help="learning rate (default: found in a few steps)")
@click.option("--bias-lr", type=float, default=DEFAULT.bias_lr, show_default=True)
@click.option("--warmup", type=int, default=DEFAULT.warmup, show_default=True, help="steps")
@click.option("--schedule", default=DEFAULT.schedule, show_default=True, help="wsd, linear, cosine, constant")
@click.option("--optimiser", default=DEFAULT.optimiser, show_default=True, help="adamw, adafactor, sgd")
@click.option("--weight-decay", type=float, default=DEFAULT.weight_decay, show_default=True)
@click.option("--clip", type=float, default=DEFAULT.clip, show_default=True, help="of the gradient's norm")
@click.option("--dual-rate", type=float, default=DEFAULT.dual_rate, show_default=True, help="of the multiplier")
@click.option("--precision", default=DEFAULT.precision, show_default=True, help="no, bf16: what training computes in")
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True)
@click.option("--column", default="text", show_default=True, help="of the data, the one with the text")
@click.option(
    "--keep-text",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep what --data self draws, and take it from there in another run",
)
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
    keep_text: Path | None,
    dtype: str,
    **options: Any,
) -> None:
    """Post-train a model so that few of its attention edges are left, with the loss held to the base model's.

    MODEL is a hub id, a folder or a .gguf file. The folder of --out becomes the sparse model, for `gossamer circuits`
    and `gossamer.load`; it is the sparsest state whose held-out loss met the bound. Exit code 1 says that none did.

    \b
    Examples:
      gossamer sparsify gpt2 --data Skylion007/openwebtext --out sparse-gpt2
      gossamer sparsify ./model --data text.txt.gz --block 256 --steps 2000 --out sparse --resume
      gossamer sparsify ./model --data self --margin 0.02 --out sparse
      gossamer sparsify allenai/OLMo-7B-hf --data dolma-0000.json.gz --lora 16 --precision bf16 --out sparse-olmo
      accelerate launch -m gossamer.cli sparsify gpt2 --data text.jsonl --batch 64 --out sparse-gpt2
    """
    import gossamer

    loading = {name: options.pop(name) for name in ("device", "revision", "first_token", "trust_remote_code")}
    Settings(**options).check()  # before minutes are spent on loading
    if dtype == "auto" and options["lora"] is None:
        dtype = "float32"
    loaded = gossamer.load(model, dtype=dtype, **loading)
    with training_bar(options["steps"], options["penalty"]) as (progress, report):
        result = gossamer.sparsify(
            loaded,
            data,
            out,
            column=column,
            keep_text=keep_text,
            resume=resume,
            force=force,
            track=track,
            progress=progress,
            report=report,
            **options,
        )
    if not result:  # another process speaks
        return
    bound = result["tau"] if options["penalty"] else None
    describe_sparse(result["evaluation"], out, tau=bound, step=result["kept_step"])
    for warning in result["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))


@click.command()
@click.argument("model")
@click.option("--against", required=True, help="the base model")
@click.option(
    "--data", required=True, help="text file, .jsonl, .parquet, hub data set id, self or bundled: drawn from the base"
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
    from gossamer.attention.gating import SECTION

    sparse = gossamer.load(model, **loading)
    if loading["first_token"] == "auto":  # as in training
        loading["first_token"] = getattr(sparse.hf.config, SECTION, {}).get("first_token", "auto")
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


@click.command("train-bundled")
@click.argument("name", type=click.Choice(["gpt2", "olmo"]))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for the model")
@click.option("--steps", type=int, help="(default: that of the shipped model)")
@click.option("--seed", type=int, default=0, show_default=True)
def train_bundled(name: str, out: Path, steps: int | None, seed: int) -> None:
    """Train a bundled model from nothing on the text that is generated for it.

    If the folder of --out holds an interrupted run of the same command, it goes on.

    \b
    Example:
      gossamer train-bundled gpt2 --out runs/gpt2
    """
    from gossamer.bundled.train import train

    with dense_bar() as report:
        result = train(name, out, steps=steps, seed=seed, report=report)
    note(f"held-out loss {result['held_out_loss']:.4f}, written to {out}")
    for task, score in result["tasks"].items():
        note(f"{task}: {score['accuracy']:.1%} right, clean {score['clean']:.3f}, corrupted {score['corrupted']:.3f}")
