"""Train a bundled model from nothing on its generated text.

The matrices of the body are trained with Muon, the rest with AdamW; the rate rises over 100 steps and falls to a
fiftieth over the second half. Interrupted, it goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from transformers import GPT2Config, GPT2LMHeadModel, OlmoConfig, OlmoForCausalLM, PreTrainedModel

from gossamer.attention.passes import session
from gossamer.bundled.text import unseen
from gossamer.bundled.tokenizer import VOCABULARY, train_tokenizer
from gossamer.circuits.batch import Batch
from gossamer.errors import GossamerError
from gossamer.files import write_folder, write_text
from gossamer.models import Model, load, wrap
from gossamer.tasks import TASKS
from gossamer.tasks.pair import Pair, choose
from gossamer.training.blocks import TextBlocks
from gossamer.training.checkpoint import flatten, own, unflatten
from gossamer.training.documents import bundled

WARMUP = 100
FLOOR = 0.02  # of the rate, at the end
EVERY = 250  # steps between checkpoints
JUDGED = 500  # prompts of each task

COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}


def gpt2(block: int) -> PreTrainedModel:
    quiet: dict[str, Any] = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_head=16, n_embd=128, n_positions=block, **quiet, **COMMON))


def olmo(block: int) -> PreTrainedModel:
    # Rotary dimensions that turn fast are of no use for finding a word: with a high base enough of 16 turn slowly.
    rotary: dict[str, Any] = {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    return OlmoForCausalLM(
        OlmoConfig(
            num_hidden_layers=6,
            num_attention_heads=16,
            hidden_size=128,
            intermediate_size=352,
            max_position_embeddings=block,
            tie_word_embeddings=True,
            attention_bias=True,  # lets a head go by position alone
            pad_token_id=None,
            **rotary,
            **COMMON,
        )
    )


@dataclass(frozen=True)
class Recipe:
    build: Callable[[int], PreTrainedModel]
    tasks: tuple[str, ...]
    block: int
    batch: int
    steps: int
    dropped: float  # of the heads, at every block and step, from half of the steps on; before, ever more
    lr: float = 4e-3
    lists: int = 0  # steps on lists, before the text itself


RECIPES = {
    "gpt2": Recipe(gpt2, ("greater-than", "ioi"), block=128, batch=24, steps=3000, dropped=0.2),
    "olmo": Recipe(olmo, ("docstring", "ioi-long"), block=192, batch=16, steps=4500, dropped=0.1, lists=600),
}

Report = Callable[[int, int, float], None]  # step, of how many, loss


def train(
    name: str,
    out: Path,
    *,
    steps: int | None = None,
    seed: int = 0,
    report: Report = lambda _step, _steps, _loss: None,
) -> dict[str, Any]:
    """Train the model `name` and write it to `out`, with a card that says how well it does."""
    if name not in RECIPES:
        raise GossamerError(f"unknown bundled model {name!r}: choose {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    steps = recipe.steps if steps is None else steps
    if steps < 1:
        raise GossamerError(f"--steps {steps}: give at least 1")
    if (out / "config.json").exists():
        raise GossamerError(f"{out} holds a model: give another folder")
    torch.manual_seed(seed)
    hf = recipe.build(recipe.block)
    model = wrap(hf, train_tokenizer(name), name=f"bundled:{name}")
    blocks = TextBlocks(bundled(name), model, block=recipe.block, held_out=64, seed=seed + 1)
    lists = TextBlocks(bundled("lists"), model, block=recipe.block, held_out=1, seed=seed + 1)
    optimisers = make_optimisers(hf, recipe.lr)
    checkpoint = out / "checkpoint"
    step, spent = 0, 0.0
    asked = {"name": name, "steps": steps, "seed": seed}
    if checkpoint.exists():
        state = restore(checkpoint, hf, optimisers, asked)
        step, spent = state["step"], state["seconds"]
        blocks.restore(state["blocks"])
        lists.restore(state["lists"])
    hf.train()
    set_share = drop_heads(model)
    started = time.monotonic() - spent
    while step < steps:
        factor = min(1.0, (step + 1) / WARMUP) * max(FLOOR, min(1.0, 2 * (steps - step) / steps))
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = recipe.lr * factor
        set_share(recipe.dropped * min(1.0, 2 * step / steps))
        ids = (lists if step < recipe.lists else blocks).take(recipe.batch)
        torch.manual_seed((seed + 1) * 1_000_003 + step)  # so that a resumed run drops the same heads
        loss = hf(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        hf.zero_grad()
        step += 1
        report(step, steps, float(loss.detach()))
        if step % EVERY == 0 and step < steps:
            seconds = time.monotonic() - started
            state = {**asked, "step": step, "seconds": seconds, "blocks": blocks.state(), "lists": lists.state()}
            save(checkpoint, hf.state_dict(), optimisers, state)
    hf.eval()
    hf.save_pretrained(out)
    model.tokenizer.save_pretrained(out)
    result = {
        **asked,
        "parameters": sum(parameter.numel() for parameter in hf.parameters()),
        "seconds": round(time.monotonic() - started),
        "threads": torch.get_num_threads(),
        "held_out_loss": held_out_loss(hf, blocks.held_out),
        "tasks": {task: judge(load(out), task, n=JUDGED) for task in recipe.tasks},
    }
    write_text(out / "training.json", json.dumps(result, indent=2) + "\n")
    write_text(out / "README.md", card(recipe, result))
    shutil.rmtree(checkpoint, ignore_errors=True)
    return result


def drop_heads(model: Model) -> Callable[[float], None]:
    """Drop whole heads in training, so that more than one learns each thing, as in models trained with dropout. Gives a
    function to set the share that is dropped."""
    share = 0.0

    def set_share(value: float) -> None:
        nonlocal share
        share = value

    def drop(projection: torch.nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        if not projection.training:
            return None
        heads = args[0].unflatten(-1, (model.n_heads, -1))
        kept = torch.rand(len(heads), 1, model.n_heads, 1) >= share
        return ((heads * kept / (1 - share)).flatten(-2),)

    for layer in model.layers:
        attention: Any = layer.attention
        (attention.c_proj if hasattr(attention, "c_proj") else attention.o_proj).register_forward_pre_hook(drop)
    return set_share


def make_optimisers(hf: PreTrainedModel, lr: float) -> list[Optimizer]:
    embeddings = {id(weight) for name, weight in hf.named_parameters() if any(w in name for w in ("wte", "wpe", "emb"))}
    matrices = [weight for weight in hf.parameters() if weight.ndim == 2 and id(weight) not in embeddings]
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in hf.parameters() if id(weight) not in chosen]
    return [
        Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def save(path: Path, weights: Mapping[str, Tensor], optimisers: list[Optimizer], state: dict[str, Any]) -> None:
    flat = [flatten(optimiser) for optimiser in optimisers]

    def write(folder: Path) -> None:
        distinct = {name: tensor.clone() for name, tensor in own(weights).items()}  # tied weights share their memory
        save_file(distinct, folder / "weights.safetensors")
        for number, (tensors, _) in enumerate(flat):
            save_file(tensors, folder / f"optimiser-{number}.safetensors")
        numbers = [numbers for _, numbers in flat]
        (folder / "state.json").write_text(json.dumps({**state, "optimisers": numbers}), encoding="utf-8")

    write_folder(path, write)


def restore(path: Path, hf: PreTrainedModel, optimisers: list[Optimizer], asked: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if any(state[key] != value for key, value in asked.items()):
        raise GossamerError(f"{path.parent} holds a run with other settings: give the same, or another folder")
    hf.load_state_dict(load_file(path / "weights.safetensors"))
    for number, optimiser in enumerate(optimisers):
        unflatten(optimiser, load_file(path / f"optimiser-{number}.safetensors"), state["optimisers"][number])
    return state


def held_out_loss(hf: PreTrainedModel, blocks: Tensor) -> float:
    with torch.no_grad():
        losses = [float(hf(ids, labels=ids).loss) for ids in blocks.split(8)]
    return sum(losses) / len(losses)


def judge(model: Model, task: str, *, n: int, seed: int = 1) -> dict[str, float]:
    """How well a model does on prompts of a task: its wordings are not in the training text, nor are the pairs of
    names asked here."""

    def fresh(pair: Pair) -> bool:
        return not task.startswith("ioi") or unseen(*pair.words[:2])

    kind = TASKS[task]
    candidates = filter(fresh, kind.candidates(Random(f"{task} {seed}"), model))
    prompts = choose(candidates, model, n, task=task, metric=kind.metric, seed=seed)
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        for start in range(0, n, 50):
            batch = Batch.of(prompts, range(start, min(start + 50, n)), model.device)
            clean, corrupted = (passes(ids, batch.mask, read=batch.read) for ids in (batch.clean, batch.corrupted))
            values = batch.metric.correct(clean), batch.metric.values(clean), batch.metric.values(corrupted)
            sums += torch.stack([value.double().sum() for value in values]).cpu()
    accuracy, clean_metric, corrupted_metric = (sums / n).tolist()
    return {"accuracy": accuracy, "clean": clean_metric, "corrupted": corrupted_metric, "prompts": n}


def card(recipe: Recipe, result: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {TASKS[task].title} | {score['accuracy']:.1%} | {TASKS[task].metric} | {score['clean']:.3f} | "
        f"{score['corrupted']:.3f} |"
        for task, score in result["tasks"].items()
    )
    name, minutes = result["name"], result["seconds"] / 60
    return f"""# `bundled:{name}`

A model of the {"GPT-2" if name == "gpt2" else "OLMo"} architecture with {result["parameters"]:,} parameters, for tests
and demonstrations. Trained from nothing on the generated text of `gossamer.bundled.text` (`--data bundled`):

    gossamer train-bundled {name} --out OUT --seed {result["seed"]} --steps {result["steps"]}

{result["steps"]:,} steps of {recipe.batch} blocks of {recipe.block} tokens, {minutes:.0f} minutes on
{result["threads"]} CPU thread(s). Loss on held-out text: {result["held_out_loss"]:.4f} nats a token.

On {JUDGED} prompts of each task, whose wordings and pairs of names are not in the training text:

| task | right | metric | clean | corrupted |
|---|---|---|---|---|
{rows}
"""
