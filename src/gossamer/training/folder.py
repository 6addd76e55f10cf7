"""The sparse model as a transformers folder, which only `gossamer.load` opens.

transformers alone would run it dense without a word. So `config.json` names a model type that it does not know and an
attention that it does not have: the auto classes refuse, and so does the model's own class unless it is told to take
another attention.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from gossamer.attention import gating
from gossamer.attention.function import NAME
from gossamer.files import write_folder, write_text
from gossamer.training.settings import Settings, option
from gossamer.training.student import Student

CONFIG = "config.json"
RESULT = "sparsify.json"
CARD = "README.md"


def write_model(
    student: Student, out: Path, settings: Settings, base: dict[str, Any], first_token: str | None = None
) -> None:
    """Write the weights, tokenizer and configuration into `out`, the configuration last: without it nothing loads.

    base: what describes the base model; adapters are of use with it only.
    first_token: the one that was asked for, where it is not the model's own.
    """
    place = Path(base["name"]).expanduser()
    section: dict[str, Any] = {
        "gate": gating.to_config(student.hf),
        "block": settings.block,
        "base": {
            "name": str(place.resolve()) if place.exists() else base["name"],
            **{key: base[key] for key in ("revision", "weights", "dtype")},
        },
        "adapter": student.peft is not None and not settings.merge and settings.penalty,
        **({} if first_token is None else {"first_token": first_token}),
    }
    gating.remove(student.hf)
    adapters = section["adapter"]
    hf = student.merged() if student.peft is not None and not adapters else student.hf

    def write(folder: Path) -> None:
        student.model.tokenizer.save_pretrained(folder)
        if adapters:
            # "auto" asks the hub for the vocabulary of whatever the base model's file is called
            student.peft.save_pretrained(folder / "adapter", save_embedding_layers=False)
            (folder / "adapter" / CARD).unlink(missing_ok=True)  # an empty form
            hf.config.save_pretrained(folder)
        else:
            hf.save_pretrained(folder)
        if not settings.penalty:  # an ordinary dense model
            return
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config["model_type"] = gating.MODEL_TYPE + config["model_type"]
        config["attn_implementation"] = NAME
        config[gating.SECTION] = section
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    ready = out / "model"
    write_folder(ready, write)
    for path in sorted(ready.iterdir(), key=lambda path: path.name == CONFIG):
        if (out / path.name).is_dir():
            shutil.rmtree(out / path.name)
        os.replace(path, out / path.name)
    ready.rmdir()
    if not adapters and (out / "adapter").exists():  # merged after all
        shutil.rmtree(out / "adapter")


def write_card(out: Path, result: dict[str, Any]) -> None:
    """The model card: what this is, its numbers, and how it was made."""
    e, settings = result["evaluation"], result["settings"]
    asked = "\n".join(f"| {name} | {value} |" for name, value in {**settings, "lr": result["lr"]}.items())
    base, data = (" ".join(name.replace("`", "").split()) for name in (result["model"]["name"], result["data"]))
    steps, *longer = result["lengths"]
    more = f"\nmade longer with `--resume`: {', then '.join(f'`--steps {n}`' for n in longer)}.\n" if longer else ""
    title, story, rows = (sparse_card if settings["penalty"] else dense_card)(base, result["tau"], e)
    text = f"""---
library_name: gossamer
tags: [sparse-attention, interpretability]
---

# {title}

{story}

| measured on {e["blocks"]} held-out blocks of {e["block"]} tokens | |
|---|---|
| loss | {e["loss"]:.4f} |
| loss of the base model | {e["base_loss"]:.4f} |
{rows}| KL from the base model | {e["kl"]:.4f} |
| most likely token the same as the base model's | {e["top1_agreement"]:.2%} |

Text: `{data}`. Kept: step {result["kept_step"]} of {settings["steps"]}. `{RESULT}` holds
all of this and the versions, `log.jsonl` every step. Made by

    {command(base, data, {**settings, "steps": steps}, result["loading"])}
{more}
| setting | |
|---|---|
{asked}
"""
    write_text(out / CARD, text)


def command(base: str, data: str, settings: dict[str, Any], loading: dict[str, str]) -> str:
    """What makes this model: the settings that are not the defaults, and how model and text were loaded."""
    flags = {"penalty": "--no-penalty", "learn_bias": "--fix-bias", "renormalise": "--renormalise", "merge": "--merge"}
    usual = dataclasses.asdict(Settings())
    words = ["gossamer", "sparsify", base, "--data", data]
    for name, value in settings.items():
        if value == usual[name]:
            continue
        if name == "distill":
            words.append("--distill" if value else "--no-distill")
        else:
            words += [flags[name]] if name in flags else [option(name), str(value)]
    words += [word for name, value in loading.items() for word in (option(name), value)]
    return shlex.join([*words, "--out", "OUT"])


def sparse_card(base: str, tau: float, e: dict[str, Any]) -> tuple[str, str, str]:
    """Title, story and rows of a sparse model's card."""
    story = f"""Post-trained with Gossamer: its gates leave {e["edges"]:.2%} of the attention edges open, at a loss
of {e["loss"]:.4f} nats a token on held-out text (base model {e["base_loss"]:.4f}, bound {tau:.4f}).

    import gossamer
    model = gossamer.load("this folder")      # model.hf is the transformers model with its gates

transformers' auto classes refuse this folder, because they would run the model without its gates."""
    rows = f"""| edges open, gates decided | {e["edges"]:.4%} |
| without edges to the first token | {e["edges_without_first"]:.4%} |
| without the diagonal too | {e["edges_without_first_and_diagonal"]:.4%} |
| open edges of a query and head, mean | {e["edges_per_query"]:.3f} |
| heads with no edge open | {len(e["shut_heads"])} |
"""
    return f"A sparse twin of `{base}`", story, rows


def dense_card(base: str, _tau: float, _e: dict[str, Any]) -> tuple[str, str, str]:
    story = f"""`{base}` trained further with Gossamer, with no penalty on its attention edges: the control that
tells what training alone does from what sparsity does. An ordinary dense model."""
    return f"`{base}`, fine-tuned", story, ""
