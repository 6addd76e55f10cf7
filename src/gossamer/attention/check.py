"""Refuse a model unless Gossamer's attention gives the model's own logits, and is all that moves information in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gossamer.attention.function import AttentionCall
from gossamer.attention.passes import Layer, Passes, Readout, first, session
from gossamer.errors import GossamerError


class Refused(GossamerError):
    """A model whose attention we can't reproduce, by name."""


def check_attention(hf: PreTrainedModel, name: str) -> tuple[tuple[Layer, ...], int, bool]:
    """Run a few tokens and refuse the model unless our attention gives its logits, and is all that moves information.

    1. On two sequences of unequal length, so that one is padded, our logits equal those of the model's own eager
       attention, and no position looks at a later one.
    2. A sequence in which every head is replaced by its output on another one, equal only in its last token, ends in
       the other's logits: the definition of "no unit kept". A model that mixes tokens by other means (state space,
       convolution) fails.
    3. Starting at a later layer gives the same logits. So does running the later positions after a prefix; a model
       that takes no positions still works, without that shortcut.

    A sparse model is checked with its gates open.
    """

    def refuse(reason: str) -> Refused:
        return Refused(f"{name!r} ({hf.config.model_type}) is not supported: {reason}")

    if hf.get_output_embeddings() is None:
        raise refuse("it has no unembedding, so it is not a causal language model")
    if not hf._can_set_attn_implementation():
        raise refuse("its attention never asks transformers' attention interface")

    embed: Any = hf.get_input_embeddings()
    vocabulary: int = embed.weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (2, 12), generator=generator)
    other = torch.randint(vocabulary, (1, 12), generator=generator)
    other[0, 11] = ids[0, 11]
    ids, other = ids.to(hf.device), other.to(hf.device)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    real = mask.bool()

    def gap(a: Tensor, b: Tensor) -> float:
        return (a - b)[real[:, -a.shape[1] :]].abs().max().item()

    watch = Watch()
    try:
        with torch.no_grad():
            with session(hf, (), implementation="eager", open=True) as passes:
                own = passes(ids, mask)
            with session(hf, (), open=True) as passes:
                ours = passes(ids, mask, probe=watch)
            layers, n_heads = watch.layers(hf, refuse)
            if not torch.isfinite(own[real]).all():
                raise refuse("its logits on a few random tokens are not finite")
            tolerance, noise = logit_tolerance(hf, own, ids, mask, gap)
            if gap(own, ours) > tolerance:
                reason = f"with Gossamer's attention its logits differ by {gap(own, ours):.2g} from its own"
                if 3 * noise > tolerance and hf.dtype != torch.float64:
                    finer = "float64" if hf.dtype == torch.float32 else "float32"
                    reason += f", and those of its own eager and sdpa attention by {noise:.2g}: load it in {finer}"
                raise refuse(reason)
            with session(hf, layers, open=True) as passes:
                mixed = none_kept_error(passes, ids[:1], other)
                residual: list[Tensor] = []
                passes(ids, mask, capture=residual)
                restarted = passes(ids, mask, start=(1, residual[0])) if len(layers) > 1 else ours
                later = passes(ids[:, 5:], prefix=passes.prefix(ids, mask, 5))
            if mixed > tolerance:
                raise refuse(
                    "something other than attention carries information between its tokens (logits differ by "
                    f"{mixed:.2g} with every head replaced)"
                )
            if residual[0].shape[:2] != ids.shape or gap(ours, restarted) > tolerance:
                raise refuse("what passes between its layers is not a single residual stream")
    except Refused:
        raise
    except GossamerError as error:  # from inside the attention function, which doesn't know the model's name
        raise refuse(str(error)) from error
    except Exception as error:  # the model's own forward pass, or one that our calls don't suit
        raise refuse(f"a pass over a few tokens failed ({' '.join(str(error).split())[:200]})") from error
    return layers, n_heads, gap(later, own[:, 5:]) <= tolerance


def logit_tolerance(
    hf: PreTrainedModel, own: Tensor, ids: Tensor, mask: Tensor, gap: Callable[[Tensor, Tensor], float]
) -> tuple[float, float]:
    """How much logits may differ: a little, or what rounding alone makes of them, which the model's own two attentions
    tell (returned too). That grows with depth and outlying states: 0.0005 at a spread of 4 in a SmolLM2 of 30 layers,
    in float32."""
    scale = max(own[mask.bool()].float().std().item(), 1e-3)
    least, most = (1e-4, 1e-3) if hf.dtype in (torch.float32, torch.float64) else (0.1, 0.5)
    noise = 0.0
    if hf._supports_sdpa:
        with session(hf, (), implementation="sdpa", open=True) as passes:
            noise = gap(passes(ids, mask), own)
    return min(max(least * scale, 3 * noise), most * scale), noise


def none_kept_error(passes: Passes, clean: Tensor, corrupted: Tensor) -> float:
    kept: list[Tensor] = []
    last = Readout(torch.tensor([clean.shape[1] - 1]))

    def record(call: AttentionCall) -> Tensor:
        kept.append(call.output)
        return call.output

    target = passes(corrupted, read=last, probe=record)
    patched = passes(clean, read=last, probe=lambda call: kept[call.layer])
    return (target - patched).abs().max().item()


class Watch:
    """A probe that only notes which modules call, with how many heads, and whether they look ahead."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, int]] = []
        self.looks_ahead = False

    def __call__(self, call: AttentionCall) -> Tensor:
        self.calls.append((call.module, call.query.shape[1]))
        self.looks_ahead |= bool(call.visible.triu(1).any())
        return call.output

    def layers(self, hf: PreTrainedModel, refuse: Callable[[str], Refused]) -> tuple[tuple[Layer, ...], int]:
        """The decoder layers in order, once every one of them is known to attend through our function."""
        expected = hf.config.get_text_config().num_hidden_layers
        found = [getattr(module, "layer_idx", None) for module, _ in self.calls]
        if found != list(range(expected)):
            raise refuse(f"of its {expected} layers, those that attend through the interface are {found}")
        if self.looks_ahead:
            raise refuse("its attention looks at later tokens, so that it is not a causal language model")
        heads = {n for _, n in self.calls}
        if len(heads) != 1:
            raise refuse(f"its layers have different numbers of heads, {sorted(heads)}")
        modules = decoder_layers(hf, [module for module, _ in self.calls])
        if modules is None:
            raise refuse("its decoder layers are not in one list")
        return layer_shapes(hf, modules, [module for module, _ in self.calls]), heads.pop()


def decoder_layers(hf: PreTrainedModel, attentions: Sequence[nn.Module]) -> list[nn.Module] | None:
    """The members of the ModuleList that holds these attention modules, one in each member."""
    for module in hf.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(attentions):
            members = list(module)
            inside = (any(m is attention for m in member.modules()) for member, attention in zip(members, attentions))
            if all(inside):
                return members
    return None


def layer_shapes(
    hf: PreTrainedModel, modules: Sequence[nn.Module], attentions: Sequence[nn.Module]
) -> tuple[Layer, ...]:
    """What each layer returns, seen in a pass of one token."""
    lengths: list[int | None] = []

    def note(_module: nn.Module, _inputs: Any, out: Any) -> None:
        first(out)  # a tensor, or a tuple that starts with one
        lengths.append(len(out) if isinstance(out, tuple) else None)

    handles = [module.register_forward_hook(note) for module in modules]
    try:
        with torch.no_grad(), session(hf, (), open=True) as passes:
            passes(torch.zeros(1, 1, dtype=torch.long, device=hf.device))
    finally:
        for handle in handles:
            handle.remove()
    return tuple(Layer(*layer) for layer in zip(modules, attentions, lengths, strict=True))
