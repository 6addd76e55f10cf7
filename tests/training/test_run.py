"""Whole runs of post-training on small random models."""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import gossamer
from gossamer.attention import gating
from gossamer.attention.function import probing
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.training import checkpoint, sampled, train
from gossamer.training.blocks import TextBlocks
from gossamer.training.documents import documents
from gossamer.training.objective import objective
from gossamer.training.run import NotFeasible
from gossamer.training.settings import MATCH, PREDICT, Settings
from gossamer.training.student import Student
from gossamer.training.train import Diverged
from tests.conftest import wrapped
from tests.families import random_model
from tests.test_cli import call, refused

QUICK: dict[str, Any] = {
    "block": 16,
    "batch": 4,
    "held_out": 8,
    "steps": 12,
    "every": 4,
    "warmup": 2,
    "lr": 1e-3,
    "margin": 0.02,
}


@pytest.fixture(scope="module")
def model() -> Model:
    return wrapped("gpt2")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.jsonl"
    generator = np.random.default_rng(0)
    special = set(model.tokenizer.all_special_tokens)
    words = sorted(word for word in model.tokenizer.get_vocab() if word not in special)
    lines = [" ".join(generator.choice(words, size=40)) for _ in range(200)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def sparsify(model: Model, text: Path | str, out: Path, **more: Any) -> dict[str, Any]:
    settings = {**QUICK, **more}
    if "tau" in more:
        del settings["margin"]
    return gossamer.sparsify(model, str(text), out, **settings)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def finished(model: Model, text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs") / "sparse"
    before = {name: p.clone() for name, p in model.hf.named_parameters()}
    result = sparsify(model, text, out)
    assert all(torch.equal(p, before[name]) for name, p in model.hf.named_parameters())
    assert model.hf.config._attn_implementation != "gossamer"
    return out, result


def test_the_result_is_feasible_and_is_what_was_written(
    finished: tuple[Path, dict[str, Any]], model: Model, text: Path
) -> None:
    out, result = finished
    evaluation = result["evaluation"]
    assert evaluation["loss"] <= result["tau"] == pytest.approx(result["base_loss"] + 0.02)
    assert evaluation["base_loss"] == pytest.approx(result["base_loss"], abs=1e-5)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    judged = [row for row in log if row.get("feasible")]
    assert evaluation["edges"] == pytest.approx(min(row["edges"] for row in judged), abs=1e-6)
    assert json.loads((out / "sparsify.json").read_text()) == result
    assert not (out / "checkpoints").exists()
    assert (out / "training.png").stat().st_size > 10_000
    assert f"{evaluation['loss']:.4f}" in (out / "README.md").read_text()

    again = gossamer.evaluate(gossamer.load(out), model, str(text), block=16, held_out=8)
    for key in ("loss", "base_loss", "edges", "kl", "top1_agreement"):
        assert again[key] == pytest.approx(evaluation[key]), key
    assert again["edges_by_head"] == evaluation["edges_by_head"]


def test_evaluation_equals_the_literal_counts(finished: tuple[Path, dict[str, Any]], model: Model, text: Path) -> None:
    """From the whole patterns of every layer and the whole logits."""
    out, result = finished
    sparse = gossamer.load(out)
    blocks = TextBlocks(documents(str(text)), model, block=16, held_out=8, seed=0).held_out
    opened = torch.zeros(3)
    total = torch.zeros(3)
    by_head = torch.zeros(2, 4)

    def count(call: Any) -> Any:
        gate = ((call.scores + call.gate.bias[:, None, None] > 0) & call.visible).float()
        there = call.visible.expand_as(gate).float()
        by_head[call.layer] += gate.sum((0, 2, 3)) / there.sum((0, 2, 3))
        for kind in range(3):
            if kind > 0:
                gate[..., 0], there[..., 0] = 0, 0
            if kind > 1:
                gate, there = gate.tril(-1), there.tril(-1)
            opened[kind] += gate.sum()
            total[kind] += there.sum()
        return call.output

    with torch.no_grad():
        with probing(count):
            logits = sparse.hf(blocks).logits[:, :-1].flatten(0, 1).log_softmax(-1)
        theirs = model.hf(blocks).logits[:, :-1].flatten(0, 1).log_softmax(-1)
    targets = blocks[:, 1:].flatten()
    evaluation = result["evaluation"]
    keys = ("edges", "edges_without_first", "edges_without_first_and_diagonal")
    assert [evaluation[key] for key in keys] == pytest.approx((opened / total).tolist())
    assert torch.tensor(evaluation["edges_by_head"]).flatten().tolist() == pytest.approx(by_head.flatten().tolist())
    assert evaluation["edges_per_query"] == pytest.approx(opened[0].item() / (8 * 16 * 8))
    assert evaluation["loss"] == pytest.approx(torch.nn.functional.nll_loss(logits, targets).item(), abs=1e-5)
    assert evaluation["kl"] == pytest.approx((theirs.exp() * (theirs - logits)).sum(-1).mean().item(), abs=1e-5)
    assert evaluation["top1_agreement"] == pytest.approx((logits.argmax(-1) == theirs.argmax(-1)).float().mean().item())


def test_only_gossamer_opens_the_folder(finished: tuple[Path, dict[str, Any]], model: Model) -> None:
    out, _ = finished
    for options in ({}, {"attn_implementation": "sdpa"}, {"attn_implementation": "gossamer"}):
        with pytest.raises(ValueError, match="gossamer-gpt2"):
            AutoModelForCausalLM.from_pretrained(out, **options)
    # the class itself: once gossamer is imported its attention is known, and asks for the gates
    ids = torch.zeros(1, 4, dtype=torch.long)
    bare: Any = GPT2LMHeadModel.from_pretrained(out)
    with pytest.raises(GossamerError, match="without its gates"):
        bare(ids)
    script = f"from transformers import GPT2LMHeadModel; GPT2LMHeadModel.from_pretrained({str(out)!r})"
    without = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert without.returncode != 0
    assert 'attn_implementation="gossamer"` is not supported' in without.stderr

    sparse = gossamer.load(out)
    assert sparse.sparse
    assert sparse.describe()["sparse"]
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    assert sparse.fingerprint() != model.fingerprint()
    rewrapped = gossamer.wrap(bare, model.tokenizer)
    torch.testing.assert_close(rewrapped.hf(ids).logits, sparse.hf(ids).logits)
    for dense in ("eager", "sdpa"):  # the gates are in the model, but another attention does not ask for them
        sparse.hf.set_attn_implementation(dense)
        with pytest.raises(GossamerError, match="without its gates"):
            sparse.hf(ids)
        copied: Any = copy.deepcopy(sparse.hf)
        with pytest.raises(GossamerError, match="without its gates"):
            copied(ids)
    again = gossamer.wrap(sparse.hf, model.tokenizer)
    torch.testing.assert_close(again.hf(ids).logits, rewrapped.hf(ids).logits)


def test_circuits_of_a_sparse_model(finished: tuple[Path, dict[str, Any]]) -> None:
    sparse = gossamer.load(finished[0])
    prompts = gossamer.prompts("induction", sparse, 5)
    for units in ("heads", "edges"):
        found = gossamer.circuit(sparse, prompts, units=units)
        assert found.explained_effect[0] == pytest.approx(0, abs=1e-4)
        assert found.explained_effect[-1] == pytest.approx(1, abs=1e-4)


COMMAND = [
    *(item for name, value in QUICK.items() for item in (f"--{name.replace('_', '-')}", str(value))),
    "--device",
    "cpu",
]


def test_killed_and_resumed_it_ends_in_the_same_bits(model_folder: Path, text: Path, tmp_path: Path) -> None:
    command = ["sparsify", str(model_folder), "--data", str(text), *COMMAND, "--steps", "40"]
    assert call(*command, "--out", str(tmp_path / "whole")) == 0
    out = tmp_path / "killed"
    killed = 0
    for _ in range(20):
        process = subprocess.Popen(
            [sys.executable, "-m", "gossamer.cli", *command, "--out", str(out), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seen = len(list((out / "checkpoints").glob("step-*"))) if out.exists() else 0
        newest = max((p.name for p in (out / "checkpoints").glob("step-*")), default="") if seen else ""
        while process.poll() is None:
            time.sleep(0.005)
            names = [p.name for p in (out / "checkpoints").glob("step-*")] if out.exists() else []
            if names and max(names) > newest and killed < 3:
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
        process.wait()
        if process.returncode == 0:
            break
    assert killed == 3
    assert process.returncode == 0
    one, other = weights(tmp_path / "whole"), weights(out)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "whole", out)]
    assert configs[0] == configs[1]
    logs = [(folder / "log.jsonl").read_text().splitlines() for folder in (tmp_path / "whole", out)]
    timed = ("seconds", "tokens_per_second")
    rows = [[{k: v for k, v in json.loads(line).items() if k not in timed} for line in log] for log in logs]
    assert rows[0] == rows[1]


def test_a_resumed_run_is_judged_on_the_text_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(wrapped("llama"), first_token=1)
    begun = sparsify(model, "self", tmp_path / "whole", steps=4, every=2)
    with pytest.raises(KeyboardInterrupt):
        sparsify(model, "self", tmp_path / "out", steps=4, every=2, report=lambda *_: interrupting(at=2))
    drawn = sampled.sample

    def otherwise(*arguments: Any) -> Tensor:  # as another number of threads would
        return drawn(*arguments).flip(0).roll(1, dims=1)

    monkeypatch.setattr(sampled, "sample", otherwise)
    kept = tmp_path / "out" / "checkpoints" / "held-out.safetensors"
    whole = kept.read_bytes()
    kept.write_bytes(whole[:20])
    with pytest.raises(GossamerError, match=r"held-out\.safetensors can't be read"):
        sparsify(model, "self", tmp_path / "out", steps=4, every=2, resume=True)
    kept.write_bytes(whole)
    result = sparsify(model, "self", tmp_path / "out", steps=4, every=2, resume=True)
    assert result["base_loss"] == begun["base_loss"]
    assert result["tau"] == begun["tau"]


def test_a_checkpoint_of_another_version_is_refused(model: Model, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        sparsify(model, text, out, report=lambda *_: interrupting(at=4))
    path = max(out.glob("checkpoints/step-*")) / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "constraint": {**state["constraint"], "log_mu": 0.0}}))
    with pytest.raises(GossamerError, match="of another version of gossamer"):
        sparsify(model, text, out, resume=True)
    path.write_text("{}")
    with pytest.raises(GossamerError, match=r"can't be read \(state\.json has no blocks\)"):
        sparsify(model, text, out, resume=True)
    path.write_text(json.dumps(state))
    log = (out / "log.jsonl").read_text()
    (out / "log.jsonl").write_text(log[:-5])
    with pytest.raises(GossamerError, match=r"log\.jsonl can't be read"):
        sparsify(model, text, out, resume=True)
    (out / "log.jsonl").write_text(log)
    request = out / "checkpoints" / "request.json"
    asked = request.read_text()
    request.write_text(asked[:-5])
    with pytest.raises(GossamerError, match=r"request\.json can't be read"):
        sparsify(model, text, out, resume=True)
    request.write_text(asked)
    for best in out.glob("checkpoints/best-*/weights.safetensors"):
        best.write_bytes(b"")
    with pytest.raises(GossamerError, match=r"weights\.safetensors can't be read"):
        sparsify(model, text, out, resume=True)
    request.write_text("")
    assert sparsify(model, text, out, force=True)["kept_step"] >= 0


def interrupting(at: int) -> Callable[[int, dict[str, float]], None]:
    def report(step: int, values: dict[str, float]) -> None:
        if step > at:
            raise KeyboardInterrupt

    return report


def assert_same_run(*folders: Path) -> None:
    """But for rounding, every step and every evaluation."""
    logs = [[json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] for folder in folders]
    for one, other in zip(*logs, strict=True):
        for key in ("loss", "kl", "expected_edges", "excess", "gradient", "held_out_loss", "edges"):
            assert one.get(key, 0) == pytest.approx(other.get(key, 0), rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("distill", [False, True])
def test_a_batch_in_parts_is_the_same_batch(model: Model, text: Path, tmp_path: Path, distill: bool) -> None:
    options: dict[str, Any] = {"steps": 3, "every": 3, "noise": 1.0, "distill": distill}
    whole = sparsify(model, text, tmp_path / "whole", **options)
    parts = sparsify(model, text, tmp_path / "parts", **options, accumulate=2)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert whole["evaluation"]["loss"] == pytest.approx(parts["evaluation"]["loss"], abs=1e-4)


def test_two_processes_share_a_batch(model_folder: Path, text: Path, tmp_path: Path) -> None:
    """The same run on one process and on two, which the command line under `accelerate launch` makes it."""
    command = ["sparsify", str(model_folder), "--data", str(text), *COMMAND, "--steps", "3", "--noise", "1"]
    assert call(*command, "--out", str(tmp_path / "one")) == 0
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m", "gossamer.cli"]
    launched = subprocess.run(
        [sys.executable, *launch, *command, "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert launched.returncode == 0, launched.stderr
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    "options",
    [
        {"distill": True},
        {"lr": None},
        {"bias": 3.0, "learn_bias": False, "noise": 1.0, "train": "all"},  # the published layer
        {"renormalise": True},
        {"train": "attention", "optimiser": "adafactor", "schedule": "cosine"},
        {"optimiser": "sgd", "noise": 0.5, "schedule": "constant", "weight_decay": 0.1},
        {"tau": 100.0},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_every_choice_keeps_the_bound(model: Model, text: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    result = sparsify(model, text, tmp_path / "out", **options)
    assert result["evaluation"]["loss"] <= result["tau"]
    assert result["settings"].items() >= options.items()
    sparse = gossamer.load(tmp_path / "out")
    assert gating.gates(sparse.hf)[0].renormalise == options.get("renormalise", False)


@pytest.mark.parametrize("lora", [None, 2])
def test_without_a_penalty_a_model_is_only_fine_tuned(
    model_folder: Path, text: Path, tmp_path: Path, lora: int | None
) -> None:
    """The control: the same loop on the loss alone. It must equal plain training, and leave an ordinary model."""
    model = gossamer.load(model_folder)
    out = tmp_path / "tuned"
    result = sparsify(model, text, out, penalty=False, lora=lora, margin=0.0)
    assert result["cost"]["seconds"] > 0
    assert result["cost"]["peak_memory"] > 1e8  # torch alone is more
    assert result["kept_step"] == 12
    assert result["evaluation"]["edges"] == 1
    assert result["evaluation"]["kl"] > 0
    tuned = gossamer.load(out)
    assert not tuned.sparse
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "gpt2"  # nothing of ours in it
    assert "no penalty" in (out / "README.md").read_text()
    assert gossamer.evaluate(tuned, model, str(text), held_out=8)["block"] == 16  # as it was trained
    if lora is not None:
        return
    # The literal twin: plain AdamW on the model's own loss, over the same blocks.
    settings = Settings(**QUICK)
    blocks = TextBlocks(documents(str(text)), model, block=16, held_out=8, seed=0)
    hf: Any = copy.deepcopy(model.hf)
    embeddings = {id(hf.get_input_embeddings().weight)}
    optimiser = torch.optim.AdamW([p for p in hf.parameters() if id(p) not in embeddings], lr=1e-3, weight_decay=0)
    for step in range(12):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * settings.lr_factor(step)
        ids = blocks.take(4)
        hf(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimiser.param_groups for p in g["params"]], 1.0)
        optimiser.step()
        hf.zero_grad()
    with torch.no_grad():  # logits: the bias of keys has no gradient but rounding, which Adam blows up
        assert torch.allclose(tuned.hf(blocks.held_out).logits, hf(blocks.held_out).logits, atol=1e-4)
        assert not torch.allclose(model.hf(blocks.held_out).logits, hf(blocks.held_out).logits, atol=1e-2)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_other_families_and_their_own_text(family: str, tmp_path: Path) -> None:
    model = wrapped(family)
    model = replace(model, first_token=1)
    result = sparsify(model, "self", tmp_path / "out", steps=4, held_out=64)  # of fewer, the loss is mostly chance
    assert result["evaluation"]["loss"] <= result["tau"]
    assert result["settings"]["distill"]
    assert result["settings"]["match"] == MATCH
    assert result["settings"]["predict"] == PREDICT
    assert result["loading"] == {"first_token": model.tokenizer.convert_ids_to_tokens(1)}
    assert gossamer.load(tmp_path / "out", first_token="none").first_token is None
    sparse = gossamer.load(tmp_path / "out")
    assert sparse.first_token == 1  # as it was trained
    other = replace(model, first_token=2)
    assert "first token" in gossamer.evaluate(sparse, other, "self", held_out=2)["warnings"][0]


def test_own_text_with_no_penalty_is_trained_on_as_text(tmp_path: Path) -> None:
    model = replace(wrapped("llama"), first_token=1)  # KL to itself would train nothing
    result = sparsify(model, "self", tmp_path / "out", steps=4, penalty=False, margin=1.0)
    assert not result["settings"]["distill"]
    assert result["evaluation"]["kl"] > 1e-6


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("distill", [False, True])
def test_adapters(model_folder: Path, text: Path, tmp_path: Path, merge: bool, distill: bool) -> None:
    loaded = gossamer.load(model_folder)
    result = sparsify(loaded, text, tmp_path / "out", lora=4, merge=merge, distill=distill, lr=1e-2)
    assert result["evaluation"]["loss"] <= result["tau"]
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert log[0]["held_out_loss"] != result["evaluation"]["base_loss"]
    assert (tmp_path / "out" / "model.safetensors").exists() == merge
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists() != merge
    sparse = gossamer.load(tmp_path / "out")
    base = gossamer.load(model_folder)
    again = gossamer.evaluate(sparse, base, str(text), held_out=8)
    assert again["loss"] == pytest.approx(result["evaluation"]["loss"], abs=1e-5)
    assert again["base_loss"] == pytest.approx(result["base_loss"], abs=1e-5)
    with pytest.raises(ValueError, match="gossamer-gpt2"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_adapters_of_a_bundled_model(tmp_path: Path) -> None:
    few = {"lora": 2, "steps": 2, "every": 2, "bias": 1e4, "lr": 1e-6}
    sparsify(gossamer.load("bundled:gpt2"), "bundled", tmp_path / "out", **few)
    assert gossamer.load(tmp_path / "out").sparse
    assert not (tmp_path / "out" / "adapter" / "README.md").exists()
    with pytest.raises(GossamerError, match="give --merge too"):
        sparsify(gossamer.load("bundled:induction"), "self", tmp_path / "other", **few)
    with pytest.raises(GossamerError, match="--lora 1000: 'bundled:gpt2' is 128 wide"):
        sparsify(gossamer.load("bundled:gpt2"), "bundled", tmp_path / "other", **{**few, "lora": 1000})


def test_adapters_are_of_one_base_only(model_folder: Path, text: Path, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(model_folder, base)
    model = gossamer.load(base)
    ids = torch.zeros(1, 4, dtype=torch.long)
    before, trainable = model.hf(ids).logits, [p.requires_grad for p in model.hf.parameters()]
    for merge in (True, False):  # the model comes back as it was
        result = sparsify(model, text, out, lora=2, steps=2, lr=1e-2, merge=merge, force=True)
        assert result["evaluation"]["base_loss"] == pytest.approx(result["base_loss"], abs=1e-5)
        assert torch.equal(model.hf(ids).logits, before)
        assert [p.requires_grad for p in model.hf.parameters()] == trainable
        assert model.hf.config._attn_implementation == "sdpa"
        assert (out / "adapter").exists() != (out / "model.safetensors").exists()
    out.rename(tmp_path / "moved")
    assert gossamer.load(tmp_path / "moved").sparse
    tensors = load_file(base / "model.safetensors")
    tensors["transformer.h.0.mlp.c_fc.weight"] *= 3
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    for dtype in ("auto", "float32", "bfloat16", "float64"):
        with pytest.raises(GossamerError, match="other weights"):
            gossamer.load(tmp_path / "moved", dtype=dtype)
    shutil.copy(model_folder / "model.safetensors", base)
    for dtype in ("bfloat16", "float64"):
        assert gossamer.load(tmp_path / "moved", dtype=dtype).describe()["dtype"] == dtype
    shutil.rmtree(base)
    with pytest.raises(GossamerError, match=r"base of the adapters in .*no config\.json"):
        gossamer.load(tmp_path / "moved")


def test_a_failed_replacement_leaves_no_old_model(model: Model, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sparsify(model, text, out)
    with pytest.raises(NotFeasible):
        sparsify(model, text, out, tau=0.1, force=True)
    with pytest.raises(GossamerError, match="no state met the bound; go on with --resume"):
        gossamer.load(out)
    assert not (out / "config.json").exists()
    assert not (out / "model.safetensors").exists()


def test_another_base_is_noticed(finished: tuple[Path, dict[str, Any]], model: Model, text: Path) -> None:
    sparse = gossamer.load(finished[0])
    other = replace(model, hf=random_model("gpt2", vocabulary=model.vocabulary, seed=5), name="other")
    assert gossamer.evaluate(sparse, model, str(text), held_out=8)["warnings"] == []
    assert "not those of other" in gossamer.evaluate(sparse, other, str(text), held_out=8)["warnings"][0]
    assert "is sparse itself" in gossamer.evaluate(model, sparse, str(text), block=16, held_out=8)["warnings"][0]
    assert "not the 999 of" in gossamer.evaluate(sparse, model, str(text), held_out=999)["warnings"][0]


def test_names_stay_in_their_place_on_the_card(model: Model, text: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a`b|<img src=x>\n# Heading.jsonl"
    shutil.copy(text, odd)
    gossamer.sparsify(model, odd, tmp_path / "out", **{**QUICK, "steps": 1})  # type: ignore[arg-type]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "\n# Heading" not in card
    assert card.count("`") % 2 == 0


def test_no_feasible_state_is_said_and_can_go_on(
    model_folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["sparsify", str(model_folder), "--data", str(text), *COMMAND, "--out", str(out)]
    assert call(*command, "--bias", "-5", "--fix-bias", "--lr", "1e-6") == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no evaluation met the bound" in said
    assert not (out / "config.json").exists()
    assert (out / "checkpoints" / "step-000012").is_dir()
    more = ["--bias", "-5", "--fix-bias", "--lr", "1e-6", "--steps", "16", "--resume"]
    assert call(*command, *more) == 1
    assert (out / "checkpoints" / "step-000016").is_dir()


def test_an_end_above_the_bound_is_said_and_can_go_on(
    model: Model, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, out = train.held_out, tmp_path / "out"

    calls = itertools.count()

    def worse(*arguments: Any) -> Any:
        """Loss and edges, as if the first step had spoilt the model."""
        loss, edges = original(*arguments)
        return loss + min(next(calls), 1), edges

    monkeypatch.setattr(train, "held_out", worse)
    result = sparsify(model, text, out)
    assert result["kept_step"] == 0
    assert result["evaluation"]["loss"] <= result["tau"]
    assert "ended above the bound" in result["warnings"][0]
    assert (out / "checkpoints" / "step-000012").is_dir()
    monkeypatch.setattr(train, "held_out", original)
    result = sparsify(model, text, out, steps=16, resume=True)
    assert result["kept_step"] == 16
    assert not result["warnings"]
    assert result["lengths"] == [12, 16]
    card = (out / "README.md").read_text()
    assert "--steps 12 " in card
    assert "made longer with `--resume`: `--steps 16`." in card
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize("own", [False, True])
def test_what_is_controlled_is_what_is_judged(text: Path, tmp_path: Path, own: bool) -> None:
    """The loss above the base model's; on text of its own the KL, which is the same but for noise."""
    model = replace(wrapped("llama"), first_token=1)
    options: dict[str, Any] = {"bias": -1.0, "margin": 5.0, "distill": True, "steps": 1, "every": 1}
    sparsify(model, "self" if own else text, tmp_path / "out", **options)
    row = next(row for row in map(json.loads, (tmp_path / "out" / "log.jsonl").open()) if "excess" in row)
    settings = Settings(**{**QUICK, **options, "match": MATCH})
    student = Student(model, settings)
    student.install_gates(settings)
    shape: dict[str, Any] = {"block": 16, "held_out": 8, "seed": 0}
    ids = (
        sampled.SampledBlocks(model, student.base, **shape) if own else TextBlocks(documents(str(text)), model, **shape)
    ).take(4)
    with torch.no_grad():
        log_p = student.hf(ids).logits[:, :-1].log_softmax(-1)
        log_q = model.hf(ids).logits[:, :-1].log_softmax(-1)
    kl = (log_q.exp() * (log_q - log_p)).sum(-1).mean()
    loss = (log_q - log_p).gather(-1, ids[:, 1:, None]).mean()
    assert abs(kl - loss) > 1e-3
    assert row["excess"] == pytest.approx(float(kl if own else loss), abs=1e-5)


def test_less_held_out_text_than_asked_for_is_said(model: Model, text: Path, tmp_path: Path) -> None:
    result = sparsify(model, text, tmp_path / "out", held_out=10_000)
    blocks = result["evaluation"]["blocks"]
    assert result["warnings"] == [f"the text holds out {blocks} blocks, not the 10000 of --held-out"]


def test_a_loss_that_is_not_a_number_stops_the_run(
    model: Model, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def broken(*arguments: Any, **options: Any) -> Any:
        calls.append(1)  # one a step
        got = objective(*arguments, **options)
        return got._replace(loss=got.loss * torch.nan) if len(calls) == 10 else got

    monkeypatch.setattr(train, "objective", broken)
    with pytest.raises(Diverged, match=r"step 10; the last good state is .*step-000008"):
        sparsify(model, text, tmp_path / "out")
    monkeypatch.undo()
    assert sparsify(model, text, tmp_path / "out", resume=True)["evaluation"]["loss"]


def test_a_full_disk_leaves_the_previous_checkpoint(
    model: Model, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(tensors: Any, path: Path) -> None:
        calls.append(path)
        if "step-000008" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        sparsify(model, text, tmp_path / "out")
    left = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert "step-000004" in left
    assert not any("step-000008" in name for name in left)
    monkeypatch.undo()
    resumed = sparsify(model, text, tmp_path / "out", resume=True)
    whole = sparsify(model, text, tmp_path / "whole")
    assert resumed["evaluation"] == whole["evaluation"]


def test_the_last_few_checkpoints_are_kept(model: Model, text: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFeasible):
        sparsify(model, text, tmp_path / "out", bias=-5.0, learn_bias=False, lr=1e-6, steps=20)
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints").glob("*-*"))
    assert kept == ["held-out.safetensors", "step-000016", "step-000020"]


def test_other_settings_are_refused(model: Model, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(NotFeasible):
        sparsify(model, text, out, bias=-5.0, learn_bias=False, lr=1e-6)
    stuck = {"bias": -5.0, "learn_bias": False, "lr": 1e-6}
    with pytest.raises(GossamerError, match=r"--seed 0 then, 1 now"):
        sparsify(model, text, out, resume=True, seed=1, **stuck)
    with pytest.raises(GossamerError, match="--steps 12 then, 8 now"):
        sparsify(model, text, out, resume=True, **{**stuck, "steps": 8})
    with pytest.raises(GossamerError, match="--data"):
        sparsify(model, "self", out, resume=True, **stuck)
    with pytest.raises(GossamerError, match=r"\(the model's first_token None then, '\S+' now\)"):
        sparsify(replace(model, first_token=1), text, out, resume=True, **stuck)
    with pytest.raises(GossamerError, match="--resume goes on"):
        sparsify(model, text, out, **stuck)
    sparsify(model, text, out, force=True)
    with pytest.raises(GossamerError, match="holds a finished run"):
        sparsify(model, text, out)
    with pytest.raises(GossamerError, match="at least 1"):
        sparsify(model, text, out, force=True, steps=0)
    assert gossamer.load(out).sparse  # what is refused replaces nothing
    with pytest.raises(GossamerError, match="nothing to resume"):
        sparsify(model, text, out, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(GossamerError, match=r"other files \(thesis.txt\)"):
        sparsify(model, text, tmp_path / "mine", force=True)


def test_bad_input_is_one_line(
    model_folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*options: str, data: str = str(text), out: str = "out") -> str:
        command = ["sparsify", str(model_folder), "--data", data, "--out", str(tmp_path / out), *COMMAND]
        return refused(capsys, *command, *options)

    assert "--margin -0.1" in said("--margin", "-0.1")
    assert "--margin nan" in said("--margin", "nan")
    assert "--steps 0" in said("--steps", "0")
    assert "--block 999: " in said("--block", "999")
    assert "--merge" in said("--merge")
    assert "--batch 4 --accumulate 3: the batch must be a multiple of 3" in said("--accumulate", "3")
    assert "unknown --schedule" in said("--schedule", "spiral")
    assert "not installed" in said("--track", "comet_ml")
    assert "--bias 1e+39" in said("--bias", "1e39")
    assert "at most 1" in said("--dual-rate", "1e9")
    assert "at most 1" in said("--noise", "1e30")
    assert "--slack 0.5: give at least 1" in said("--slack", "0.5")
    assert "--slack-ends 0.0: give more than 0" in said("--slack-ends", "0")
    assert "--aim 2: give at most 1" in said("--aim", "2")
    assert "--match -1.0: give at least 0" in said("--match", "-1")
    assert "--match with --no-penalty" in said("--match", "1", "--no-penalty")
    assert "--distill with --no-penalty" in said("--distill", "--no-penalty")
    for option in (["--bias", "3"], ["--noise", "1"], ["--renormalise"], ["--fix-bias"], ["--slack", "2"]):
        assert f"{option[0]} with --no-penalty" in said(*option, "--no-penalty")
    assert "--tau 2 and --margin 0.02 are two bounds" in said("--tau", "2")
    assert "--lr inf: give a finite number" in said("--lr", "inf")
    assert "no such file" in said(data=str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").touch()
    assert "is empty" in said(data=str(tmp_path / "empty.txt"))
    assert not (tmp_path / "out" / "config.json").exists()


def test_evaluate_on_the_command_line(
    finished: tuple[Path, dict[str, Any]], model_folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = finished
    command = ["evaluate", str(out), "--against", str(model_folder), "--data", str(text), "--held-out", "8"]
    capsys.readouterr()
    assert call(*command, "--json", "--by-head") == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out.strip().splitlines()[-1])
    assert printed["loss"] == pytest.approx(result["evaluation"]["loss"])
    assert printed["edges"] == pytest.approx(result["evaluation"]["edges"])
    assert printed["block"] == 16
    assert "edges open by head" in captured.err
    assert " H1=" in captured.err
    assert "--block 0: give at least 2" in refused(capsys, *command, "--block", "0")
    dense = ["evaluate", str(model_folder), "--against", str(model_folder), "--data", str(text), "--block", "16"]
    assert call(*dense, "--json") == 0
    printed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert printed["edges"] == 1
    assert printed["kl"] == pytest.approx(0, abs=1e-6)
    assert printed["top1_agreement"] == 1
