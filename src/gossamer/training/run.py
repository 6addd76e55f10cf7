"""A post-training run: a folder that is filled, can be interrupted at any moment, and ends in a model."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor

from gossamer.attention import gating
from gossamer.bundled import mix_of
from gossamer.errors import GossamerError
from gossamer.files import write_text
from gossamer.models import BUNDLED, Model, find_first_token, find_folder, load
from gossamer.training.begin import PLOT, REQUEST, check_folder, clear, read_request, refuse_others, writing
from gossamer.training.blocks import Blocks, Progress, TextBlocks, silent
from gossamer.training.checkpoint import FOLDER, Checkpoints
from gossamer.training.cost import cost
from gossamer.training.documents import bundled as bundled_documents
from gossamer.training.documents import documents
from gossamer.training.evaluate import measure
from gossamer.training.folder import CONFIG, RESULT, write_card, write_model
from gossamer.training.rate import STEPS, find_rate
from gossamer.training.sampled import SampledBlocks
from gossamer.training.settings import MATCH, PREDICT, Settings
from gossamer.training.student import Student
from gossamer.training.train import Report, Trainer, base_loss

LONGEST_BLOCK = 1024
CALIBRATION = 8  # blocks


class NotFeasible(GossamerError):
    """No evaluation met the loss bound. The last state stays, to go on from."""

    exit_code = 1


def sparsify(
    model: Model,
    data: str,
    out: str | Path,
    *,
    column: str = "text",
    keep_text: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    track: str | None = None,
    progress: Progress = silent,
    report: Callable[[float, float], Report] = lambda _tau, _base: lambda _step, _values: None,
    **settings: Any,
) -> dict[str, Any]:
    """Post-train `model` on `data` and write its sparse twin to the folder `out`.

    Args:
        model: dense; with `lora` it is trained itself, else a copy of it.
        data: a .txt, .txt.gz, .jsonl or .parquet file, a hub data set id, "self": text drawn from the model, or
            "bundled": what a bundled model was trained on.
        out: the folder. `gossamer.load(out)` gives the sparse model.
        column: of a jsonl or parquet file or a hub data set, the one with the text.
        keep_text: a folder for text that is drawn with "self", for other runs on the same text to take it from.
        resume: go on with an interrupted run of the same settings, or begin one.
        force: replace what the folder holds.
        track: a tracker that accelerate knows: tensorboard, wandb, trackio.
        progress: called with (stage, done, total) while text is prepared and the result is evaluated.
        report: called with the bound and the base loss; what it returns is called with (step, values) during training.
        settings: see `gossamer.training.settings.Settings`.

    Returns:
        What `sparsify.json` in the folder holds.

    Raises:
        NotFeasible: no evaluation met the loss bound.
        Diverged: the loss is not a number any more.
        GossamerError: anything else that is wrong with what was asked.
    """
    out, data = Path(out), str(data)
    chosen = resolve(Settings(**settings), model)
    accelerator = make_accelerator(model, chosen, out, track)
    student_model = model.describe()  # before LoRA changes the model
    begun = read_request(out)
    check_folder(out, begun, resume=resume, force=force)
    accelerator.wait_for_everyone()  # before the first process writes to it
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(writing(out))
        student = Student(model, chosen)
        stack.callback(student.release)
        blocks = open_data(data, model, student.base, chosen, column, progress, keep_text)
        asked = {"model": student_model, "data": blocks.identity, **asdict(chosen)}
        if begun is not None and resume:
            refuse_others(begun, asked, out)
        part = max(1, chosen.batch // chosen.accumulate // accelerator.num_processes)
        resuming = resume and bool(Checkpoints(out).steps())
        if resuming and (held_out := Checkpoints(out).held_out()) is not None:
            blocks.held_out = held_out
        base = base_loss(student, blocks.held_out, part)
        tau = base + chosen.margin if chosen.tau is None else chosen.tau
        lr = chosen.lr
        if resuming:
            student.install_gates(chosen)  # the checkpoint knows the biases
            lr = Checkpoints(out).learning_rate()
        else:
            student.install_gates(chosen, lambda: blocks.take(CALIBRATION), tau - base)
            if lr is None:
                progress("finding a learning rate", 0, 1)
                lr = find_rate(student, blocks.take(STEPS * chosen.batch), chosen, margin=tau - base, part=part)
                progress("finding a learning rate", 1, 1)
        trainer = Trainer(
            student,
            blocks,
            chosen,
            accelerator=accelerator,
            out=out,
            tau=tau,
            base_loss=base,
            lr=lr,
            report=report(tau, base),
        )
        if resuming:
            trainer.restore()
        if accelerator.is_main_process:
            if not resuming:
                clear(out)
                trainer.checkpoints.save_held_out(blocks.held_out)
            write_text(out / FOLDER / REQUEST, json.dumps(asked, indent=2))
        accelerator.wait_for_everyone()
        if track is not None:
            accelerator.init_trackers("gossamer", config={k: v for k, v in asdict(chosen).items() if v is not None})
        trainer.train()
        accelerator.end_training()
        if not accelerator.is_main_process:
            return {}
        return finish(trainer, data, column, student_model, progress)


def resolve(settings: Settings, model: Model) -> Settings:
    settings.check()
    context = model.context
    block = settings.block or min(context or LONGEST_BLOCK, LONGEST_BLOCK)
    if context is not None and block > context:
        raise GossamerError(f"--block {block}: {model.name!r} takes {context} tokens at most")
    adapters = settings.lora is not None and settings.penalty and not settings.merge
    if adapters and model.name.startswith(BUNDLED) and find_folder(model.name) is None:
        raise GossamerError(f"--lora: {model.name} has no files to load its adapters onto; give --merge too")
    distill = settings.penalty if settings.distill is None else settings.distill
    match = (MATCH if distill else 0.0) if settings.match is None else settings.match
    predict = (PREDICT if match else 1) if settings.predict is None else settings.predict
    return replace(settings, block=block, distill=distill, match=match, predict=predict)


def make_accelerator(model: Model, settings: Settings, out: Path, track: str | None) -> Accelerator:
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    try:
        accelerator = Accelerator(
            cpu=model.device.type == "cpu",
            mixed_precision="no",  # see training.objective.computing
            log_with=track,
            project_dir=str(out / "tracking") if track else None,
        )
    except (ValueError, ImportError, RuntimeError) as error:
        raise GossamerError(f"accelerate can't start: {' '.join(str(error).split())}") from error
    if track and track not in [str(getattr(tracker, "value", tracker)) for tracker in accelerator.log_with]:
        raise GossamerError(f"--track {track}: not installed; pip install {track}")
    if accelerator.distributed_type not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        raise GossamerError(
            f"{accelerator.distributed_type.value} is not supported yet: run on one device, or with plain data "
            "parallelism (accelerate launch --multi_gpu)"
        )
    processes, parts = accelerator.num_processes, settings.accumulate
    if settings.batch % (processes * parts):
        raise GossamerError(
            f"--batch {settings.batch} --accumulate {parts}: the batch must be a multiple of {processes * parts}, the "
            f"parts of all processes ({processes})"
        )
    return accelerator


def open_data(
    data: str,
    model: Model,
    base: Callable[[], AbstractContextManager[Any]],
    settings: Settings,
    column: str,
    progress: Progress,
    keep_text: str | Path | None = None,
) -> Blocks:
    assert settings.block is not None
    options: dict[str, Any] = {
        "block": settings.block,
        "held_out": settings.held_out,
        "seed": settings.seed,
        "progress": progress,
    }
    if data == "self":
        return SampledBlocks(model, base, keep=None if keep_text is None else Path(keep_text), **options)
    if keep_text is not None:
        raise GossamerError(f"--keep-text with --data {data}: only text drawn with --data self is kept, leave out one")
    source = bundled_documents(mix_of(model.name)) if data == "bundled" else documents(data, column=column)
    return TextBlocks(source, model, **options)


def evaluate(
    model: Model,
    base: Model,
    data: str,
    *,
    block: int | None = None,
    held_out: int = 64,
    batch: int = 8,
    seed: int = 0,
    column: str = "text",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Evaluate a sparse model against its base on the held-out part of `data`, in blocks as in its training run."""
    section = getattr(model.hf.config, gating.SECTION, {})
    if block is None:
        block = section.get("block") or trained_block(model.name)
    chosen = resolve(Settings(block=block, held_out=held_out, batch=batch, seed=seed), base)
    blocks = open_data(data, base, nullcontext, chosen, column, progress)
    result = measure(model, base, blocks.held_out, batch=batch, progress=progress)
    warnings = fewer(blocks.held_out, chosen)
    if base.sparse:
        warnings.append(f"{base.name} is sparse itself: what is told of the base model is that of its gates")
    if model.first_token != base.first_token:
        tokens = [told.describe()["first_token"] for told in (base, model)]
        warnings.append(f"{base.name}'s first token {tokens[0]} was taken, {model.name} has {tokens[1]}")
    known = section.get("base", {})
    if known.get("dtype") == base.describe()["dtype"] and known.get("weights") != base.fingerprint():
        warnings.append(f"{model.name} was made from {known.get('name')}, whose weights are not those of {base.name}")
    return {
        "model": model.describe(),
        "base": base.describe(),
        "data": data,
        "data_identity": blocks.identity,
        "seed": seed,
        **result,
        "warnings": warnings,
        "versions": versions(),
    }


def finish(trainer: Trainer, data: str, column: str, model: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the kept weights as a model, load it again, and measure what was written."""
    from gossamer.figures.style import save
    from gossamer.figures.training import draw_training

    out, settings, best = trainer.out, trainer.settings, trainer.progress.best
    save(lambda: draw_training(trainer.log, trainer.tau, trainer.base_loss, gates=settings.penalty), out / PLOT)
    if not best:
        lowest = min(row["held_out_loss"] for row in trainer.log if "held_out_loss" in row)
        raise NotFeasible(
            f"no evaluation met the bound: the lowest held-out loss was {lowest:.4f}, tau is {trainer.tau:.4f}; the "
            f"last state is kept, go on with --resume and more --steps than {settings.steps}, or "
            "begin in another folder with a wider bound"
        )
    student, held_out = trainer.student, trainer.blocks.held_out
    student.load(trainer.checkpoints.load_best(best["name"]))
    loading = unusual(student.model, column)
    write_model(student, out, settings, model, loading.get("first_token"))
    student.release()
    base = student.model
    sparse = load(out, device=str(base.device), dtype=model["dtype"])
    evaluation = measure(sparse, base, held_out, batch=trainer.part, progress=progress)
    if settings.penalty and evaluation["loss"] > trainer.tau + 1e-4:
        (out / CONFIG).unlink()
        raise NotFeasible(
            f"the model as written has a loss of {evaluation['loss']:.4f}, more than tau {trainer.tau:.4f}: its "
            "weights were rounded to half precision"
            + (", --resume without --merge keeps them" if settings.merge else "")
        )
    last = next(row for row in reversed(trainer.log) if "held_out_loss" in row)
    missed = settings.penalty and not last["feasible"]
    warnings = fewer(held_out, settings)
    if missed:
        warnings.append(
            f"the run ended above the bound, with {last['edges']:.3%} of edges at a loss of "
            f"{last['held_out_loss']:.4f}, tau {trainer.tau:.4f}: written is step {best['step']}; --resume and more "
            f"--steps than {settings.steps} go on"
        )
    result = {
        "model": model,
        "data": data,
        "data_identity": trainer.blocks.identity,
        "loading": loading,
        "settings": asdict(settings),
        "tau": trainer.tau,
        "base_loss": trainer.base_loss,
        "lr": trainer.lr,
        "kept_step": best["step"],
        "lengths": trainer.progress.lengths,
        "cost": cost(trainer.log, base.device),
        "evaluation": evaluation,
        "warnings": warnings,
        "versions": versions(),
    }
    write_card(out, result)
    write_text(out / RESULT, json.dumps(result, indent=2) + "\n")
    if not missed:
        trainer.checkpoints.remove()
    return result


def fewer(held_out: Tensor, settings: Settings) -> list[str]:
    if len(held_out) == settings.held_out:
        return []
    return [f"the text holds out {len(held_out)} blocks, not the {settings.held_out} of --held-out"]


def trained_block(name: str) -> int | None:
    """The block that a model of ours without gates was trained with."""
    folder = find_folder(name)
    try:
        block = json.loads((folder / RESULT).read_text(encoding="utf-8"))["settings"]["block"] if folder else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return block if isinstance(block, int) else None


def unusual(model: Model, column: str) -> dict[str, str]:
    """How model and text were loaded, where that is not the default."""
    told, token = model.describe(), model.first_token
    asked = {
        "column": (column, column != "text"),
        "dtype": (told["dtype"], told["dtype"] != "float32"),
        "revision": (told["revision"], told["revision"] is not None),
        "first_token": (told["first_token"] or "none", token != find_first_token(model.tokenizer, "auto")),
    }
    return {name: value for name, (value, other) in asked.items() if other}


def versions() -> dict[str, str]:
    names = ("gossamer", "torch", "transformers", "accelerate", "peft", "datasets")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
