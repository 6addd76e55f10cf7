"""What circuit discovery costs: against the bare passes it is made of, and against TransformerLens.

    pip install "gossamer[bench]"
    python benchmarks/circuits.py

GPT-2-small shape, random weights, 16 prompts of 15 tokens: first clean and corrupted prompts that have only their last
token in common, then such that share their first ten, about what IOI's share. Every line is a ratio of times taken in
turns in this one run, the median of several rounds: on a noisy machine ratios hold where seconds don't.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import gossamer
from gossamer.attention.passes import session
from gossamer.bundled import planted
from gossamer.circuits import importance
from gossamer.circuits.activations import Activations, Record
from gossamer.circuits.batch import Batch
from gossamer.circuits.curve import measure
from gossamer.circuits.discover import ROW_TOKENS
from gossamer.circuits.ranking import order, ranks
from gossamer.circuits.units import UNITS
from gossamer.tasks.metric import LOGIT
from gossamer.tasks.pair import EncodedPair, Pair, Prompts

Job = Callable[[], object]


def timed(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """Seconds of each job in each round; the jobs take turns, so that a slow minute slows them all."""
    for job in jobs.values() if rounds > 1 else ():
        job()  # warms up
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - started)
    return times


def ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def report(name: str, value: float, wanted: str) -> None:
    print(f"{name:66} {value:6.2f}   {wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--shared", type=int, nargs="+", default=[0, 10], help="tokens that both prompts begin with")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for shared in options.shared:
        compare(options.prompts, options.tokens, shared, options.rounds)


def compare(n_prompts: int, n_tokens: int, shared: int, rounds: int) -> None:
    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config()).eval()
    model = gossamer.wrap(hf, planted.build()[1], name="GPT-2-small shape, random")
    ids = torch.randint(50257, (2, n_prompts, n_tokens))
    ids[1, :, -1] = ids[0, :, -1]
    ids[1, :, :shared] = ids[0, :, :shared]
    pairs = [
        EncodedPair(Pair("", "", (), ()), tuple(a.tolist()), tuple(b.tolist()), (5, 6), (7, 8)) for a, b in zip(*ids)
    ]
    prompts = Prompts(task="random tokens", metric=LOGIT, pairs=tuple(pairs), seed=0)
    whole = Batch.of(prompts, range(n_prompts), model.device)
    print(
        f"\n{n_prompts} prompts x {n_tokens} tokens, clean and corrupted share the first {shared}, "
        f"{torch.get_num_threads()} threads\n"
    )

    def difference(logits: Tensor) -> Tensor:
        return logits[:, -1, 5:7].mean(-1) - logits[:, -1, 7:9].mean(-1)

    def bare_forward() -> Tensor:
        with torch.no_grad():
            logits: Tensor = hf(whole.clean, logits_to_keep=1, use_cache=False).logits
        return logits

    def bare_gradient() -> None:
        """The floor: the clean pass forward and backward to its embeddings, the corrupted pass forward."""
        embeddings = hf.get_input_embeddings()(whole.clean).detach().requires_grad_()
        logits = hf(inputs_embeds=embeddings, logits_to_keep=1, use_cache=False).logits
        torch.autograd.grad(difference(logits).sum(), embeddings)
        with torch.no_grad():
            hf(whole.corrupted, logits_to_keep=1, use_cache=False)

    with session(hf, model.layers) as passes:

        def recorded(batch: Batch, patterns: bool) -> Activations:
            record = Record(patterns=patterns)
            with torch.no_grad():
                passes(batch.corrupted, batch.mask, read=batch.read, probe=record, prefix=batch.prefix)
            return record.seen

        def gradient(units: str) -> Tensor:
            unit, batch = UNITS[units], whole.after_prefix(passes)
            return importance.gradient(passes, batch, unit, recorded(batch, unit.patterns))

        def exact() -> Tensor:
            batch = whole.after_prefix(passes)
            rows = max(1, ROW_TOKENS // batch.clean.shape[1])
            return importance.exact(passes, batch, UNITS["heads"], recorded(batch, False), rows_per_pass=rows)

        def curve(units: str) -> Job:
            unit, batch = UNITS[units], whole.after_prefix(passes)
            seen = recorded(batch, unit.patterns)
            valid = unit.valid(seen, batch)
            ranked = ranks(order(torch.rand(valid.shape), valid, "signed"), valid.shape[1:])
            k = int(valid[0].sum()) // 2
            return lambda: measure(passes, batch, unit, ranked, seen, [k])

        def own(job: Job) -> Job:
            """A job of plain transformers, with its own attention."""

            def run() -> object:
                with session(hf, model.layers, implementation="sdpa"):
                    return job()

            return run

        jobs: dict[str, Job] = {
            "forward": own(bare_forward),
            "floor": own(bare_gradient),
            "heads": lambda: gradient("heads"),
            "edges": lambda: gradient("edges"),
            "curve of heads": curve("heads"),
            "curve of edges": curve("edges"),
        }
        times = timed(jobs, rounds)
        report("gradient of all heads / floor", ratio(times, "heads", "floor"), "at most 1.3")
        report("gradient of all edges / floor", ratio(times, "edges", "floor"), "at most 1.3")
        for units in UNITS:
            share = ratio(times, "forward", f"curve of {units}")
            report(f"curve of {units}: tokens a second / those of the bare forward pass", share, "at least 0.8")
        once = timed({"exact": exact, "forward": own(bare_forward)}, 1)
        report("exact heads, in bare forward passes (of 144)", ratio(once, "exact", "forward"), "about half of 144")

        if importlib.util.find_spec("transformer_lens") is None:
            print("\nTransformerLens is not installed: pip install 'gossamer[bench]' for the comparison")
            return
        against_transformer_lens(whole, jobs | {"exact": exact}, difference, rounds, exact())


def against_transformer_lens(
    batch: Batch, ours: dict[str, Job], difference: Callable[[Tensor], Tensor], rounds: int, scores: Tensor
) -> None:
    """The same jobs by TransformerLens' own means, once it is shown to run the same model."""
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config()).eval()
    bridge = TransformerBridge.boot_transformers("gpt2", hf_model=hf, tokenizer=planted.build()[1])
    bridge.eval()
    for parameter in bridge.parameters():
        parameter.requires_grad_(False)

    def keep_z(name: str) -> bool:
        return name.endswith("attn.hook_z")

    def exact() -> Tensor:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(batch.corrupted, names_filter=keep_z)
            clean = difference(bridge(batch.clean)).mean()
            patched: Tensor = patching.get_act_patch_attn_head_out_all_pos(
                bridge, batch.clean, cache, lambda logits: difference(logits).mean()
            )
        return clean - patched

    def gradient() -> Tensor:
        """By hand, as its demos do: hooks that keep z and its gradient, all prompts in one batch."""
        z: list[Tensor] = []
        slopes: list[Tensor] = []

        def keep(value: Tensor, hook: object) -> Tensor:
            z.append(value.requires_grad_())
            return value

        def keep_slope(value: Tensor, hook: object) -> None:
            slopes.insert(0, value)  # the backward pass meets the last layer first

        with torch.no_grad():
            _, cache = bridge.run_with_cache(batch.corrupted, names_filter=keep_z)
        with bridge.hooks(fwd_hooks=[(keep_z, keep)], bwd_hooks=[(keep_z, keep_slope)]):
            difference(bridge(batch.clean)).sum().backward()
        other = [cache[f"blocks.{layer}.attn.hook_z"] for layer in range(12)]
        scores = [((a.detach() - b) * slope).sum((1, 3)) for a, b, slope in zip(z, other, slopes, strict=True)]
        return torch.stack(scores, dim=1)  # (prompt, layer, head)

    error = (exact() - scores.mean(dim=0)).abs().max().item()
    print(f"\nTransformerLens: its exact head scores equal ours to {error:.1e}")
    slopes = ours["heads"]()
    assert isinstance(slopes, Tensor)
    print(f"TransformerLens: its gradient head scores equal ours to {(gradient() - slopes).abs().max().item():.1e}")
    once = timed({"ours": ours["exact"], "theirs": exact}, 1)
    report("exact heads: TransformerLens / Gossamer", ratio(once, "theirs", "ours"), "at least 3")
    times = timed({"ours": ours["heads"], "theirs": gradient}, rounds)
    report("gradient heads: TransformerLens / Gossamer", ratio(times, "theirs", "ours"), "at least 1.5")


if __name__ == "__main__":
    main()
