"""A small GPT-2 trained here on sentences of IOI and Greater Than, then made sparse: is the loss kept, are the tasks?

    python benchmarks/synthetic.py --out runs/synthetic
    python benchmarks/synthetic.py --out runs/random --random --dense-steps 500

Trains the dense model (4 layers x 8 heads, a byte-level BPE of its own) unless the folder holds it, post-trains it with
the default recipe and prints loss, edges and the accuracy on both tasks before and after. With --random the text is
words drawn by chance, in which attention finds little: the run must keep its bound there too, with hardly an edge.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import gossamer
from gossamer.attention.passes import session
from gossamer.circuits.batch import Batch
from gossamer.tasks.greater_than import TEXT
from gossamer.tasks.ioi import TEMPLATES
from gossamer.tasks.words import CENTURIES, EVENTS, NAMES, OBJECTS, PLACES
from gossamer.training.blocks import TextBlocks
from gossamer.training.documents import documents

BLOCK = 128
TASKS = ("ioi", "greater-than")
MANY = 2000  # prompts: accuracies that are near 1 can't be told apart by a hundred


def sentence(rng: Random) -> str:
    if rng.random() < 0.5:
        event, century, year = rng.choice(EVENTS), rng.choice(CENTURIES), rng.randint(0, 98)
        text = TEXT.format(event=event, century=century, year=f"{year:02}")
        return f"{text}{rng.randint(year + 1, 99):02}."
    indirect, subject = rng.sample(NAMES, 2)
    a, b = rng.sample([indirect, subject], 2)
    words = {"place": rng.choice(PLACES), "object": rng.choice(OBJECTS)}
    return f"{rng.choice(TEMPLATES).format(A=a, B=b, S=subject, **words)} {indirect}."


def random_words(rng: Random) -> str:
    return " ".join(rng.choices(NAMES + PLACES + OBJECTS + EVENTS, k=15)) + "."


def write_text(path: Path, count: int, one: Callable[[Random], str]) -> None:
    rng = Random(0)
    lines = [json.dumps({"text": one(rng)}) + "\n" for _ in range(count)]
    path.write_text("".join(lines), encoding="utf-8")


def make_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which a word is a token and so is a two-digit number."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(pattern=Regex(r"\d\d"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()[:20000]]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def train_dense(folder: Path, text: Path, steps: int) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer(text)
    config = GPT2Config(
        n_layer=4,
        n_head=8,
        n_embd=128,
        n_positions=BLOCK,
        vocab_size=len(tokenizer),
        attn_pdrop=0,
        embd_pdrop=0,
        resid_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    hf = GPT2LMHeadModel(config)
    model = gossamer.wrap(hf, tokenizer)
    blocks = TextBlocks(documents(str(text)), model, block=BLOCK, held_out=64, seed=1)
    optimiser = torch.optim.AdamW(hf.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps, pct_start=0.1)
    started = time.time()
    for step in range(steps):
        ids = blocks.take(32)
        loss = hf(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 100 == 99:
            print(f"dense: step {step + 1}, loss {loss.item():.4f}, {time.time() - started:.0f} s", flush=True)
    hf.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tasks(name: str, folder: Path) -> dict[str, Tensor]:
    """Prints accuracy, clean metric and k90 of each task; which of MANY other prompts the model answers right."""
    model, found = gossamer.load(folder), {}
    for task in TASKS:
        summary = gossamer.circuit(model, gossamer.prompts(task, model, 100)).summary()
        found[task] = right(model, task)
        print(
            f"{name}, {task}: {summary['accuracy']:.0%} right, {summary['task']['metric']} {summary['clean']:.3f}, "
            f"k90 {summary['k90']}; of {MANY:,} others {found[task].double().mean():.2%} right",
            flush=True,
        )
    return found


def right(model: gossamer.Model, task: str) -> Tensor:
    prompts, parts = gossamer.prompts(task, model, MANY, seed=1), []
    with torch.no_grad(), session(model.hf, model.layers) as passes:
        for start in range(0, MANY, 100):
            batch = Batch.of(prompts, range(start, start + 100), model.device)
            parts.append(batch.metric.correct(passes(batch.clean, batch.mask, read=batch.read)))
    return torch.cat(parts)


def told_apart(dense: Tensor, sparse: Tensor) -> str:
    """Are two models told apart by the prompts that only one of them answers right? (Sign test, two-sided.)"""
    lost, gained = int((dense & ~sparse).sum()), int((sparse & ~dense).sum())
    n, fewer = lost + gained, min(lost, gained)
    p = min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n)
    return f"only dense right {lost}, only sparse right {gained}: p = {p:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dense-steps", type=int, default=3000)
    parser.add_argument("--random", action="store_true", help="random words in place of sentences")
    parser.add_argument("options", nargs="*", help="more options for gossamer sparsify, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text, dense, sparse = options.out / "text.jsonl", options.out / "dense", options.out / "sparse"
    if not (dense / "config.json").exists():
        write_text(text, 400_000, random_words if options.random else sentence)
        train_dense(dense, text, options.dense_steps)
    before = {} if options.random else tasks("dense", dense)
    started = time.time()
    command = ["sparsify", str(dense), "--data", str(text), "--out", str(sparse), "--force", *options.options]
    subprocess.run([sys.executable, "-m", "gossamer.cli", *command], check=True)
    print(f"post-training: {time.time() - started:.0f} s")
    after = {} if options.random else tasks("sparse", sparse)
    for task in after:
        print(f"{task}, of {MANY:,} prompts {told_apart(before[task], after[task])}")


if __name__ == "__main__":
    main()
