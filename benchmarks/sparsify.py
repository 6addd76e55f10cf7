"""What the gated layer costs: a whole training step of a GPT-2-small-shaped model against the same step with `sdpa`.

    python benchmarks/sparsify.py
    python benchmarks/sparsify.py --lengths 512 1024 2048 4096 --memory-only

Batch 1, float32, AdamW. `gated` decides its gates, as `gossamer sparsify` does by default; `sampled` draws them, as
published; `naive` draws them and keeps the T x T maps. Times are ratios taken in turns in
one run, the median of several rounds; memory is the peak of a process of its own that makes two steps.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, GPT2Config, GPT2LMHeadModel

from gossamer.attention.function import mask
from gossamer.attention.gate import gated_attention

BIAS = torch.full((1,), 2.0)
shares: list[Tensor] = []
seed = 0


def gated(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    out, share = gated_attention(query, key, value, visible, BIAS, scaling=kwargs["scaling"], seed=kwargs.get("seed"))
    shares.append(share)
    return out.transpose(1, 2), None


def sampled(*tensors: Any, **kwargs: Any) -> tuple[Tensor, None]:
    global seed
    seed += 1
    return gated(*tensors, **kwargs, seed=seed)


def naive(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """The layer as it is written down, by autograd over whole maps."""
    scores = query @ key.transpose(-1, -2) * kwargs["scaling"]
    logit = scores + BIAS
    noisy = logit + torch.rand_like(logit).clamp_(1e-6, 1 - 1e-6).logit()
    soft = torch.sigmoid(noisy)
    gate = (noisy > 0).float() + soft - soft.detach()
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1) * gate
    edges = visible.sum()
    shares.append((torch.sigmoid(logit) * visible).sum(dim=(-1, -2)) / edges)
    return (weights @ value).transpose(1, 2), None


for name, function in {"gated": gated, "sampled": sampled, "naive": naive}.items():
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)


class Trainer:
    def __init__(self, length: int) -> None:
        torch.manual_seed(0)
        config = GPT2Config(n_positions=length, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
        self.model = GPT2LMHeadModel(config).train()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.ids = torch.randint(config.vocab_size, (1, length))

    def step(self, implementation: str) -> float:
        """Seconds of one training step."""
        self.model.set_attn_implementation(implementation)
        shares.clear()
        started = time.perf_counter()
        loss = self.model(self.ids, labels=self.ids, use_cache=False).loss
        if shares:
            loss = loss + torch.stack(shares).mean()
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return time.perf_counter() - started


def peak_memory(implementation: str, length: int) -> float:
    """Peak gigabytes of a process that makes two steps."""
    command = [sys.executable, __file__, "--lengths", str(length), "--measure", implementation]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--no-naive", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        trainer = Trainer(options.lengths[0])
        for _ in range(2):
            trainer.step(options.measure)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return

    kinds = ["sdpa", "gated", "sampled"] + ([] if options.no_naive else ["naive"])
    for length in options.lengths:
        memory = {kind: peak_memory(kind, length) for kind in kinds}
        for kind in kinds[1:]:
            share = memory[kind] / memory["sdpa"]
            print(f"T = {length}: {kind} / sdpa, peak memory {share:5.2f}   ({memory[kind]:.2f} GB)", flush=True)
        if options.memory_only:
            continue
        trainer = Trainer(length)
        times = [{kind: trainer.step(kind) for kind in kinds} for _ in range(options.rounds + 1)][1:]
        for kind in kinds[1:]:
            ratio = statistics.median(t[kind] / t["sdpa"] for t in times)
            print(f"T = {length}: {kind} / sdpa, time {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
