"""The slow, literal versions of what the package computes fast: plain forward hooks on the output projection's input,
the model's own attention, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gossamer.models import Model
from gossamer.tasks.metric import Metric
from gossamer.tasks.pair import EncodedPair, Prompts

PROJECTIONS = {"gpt2": "transformer.h.{}.attn.c_proj", "llama": "model.layers.{}.self_attn.o_proj"}


def projection(model: Model, layer: int) -> nn.Module:
    return model.hf.get_submodule(PROJECTIONS[model.hf.config.model_type].format(layer))


@contextmanager
def editing(model: Model, edit: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Run `edit(layer, z)` on every output projection's input, seen as (1, position, head, d_head)."""

    def hook(layer: int) -> Callable[..., tuple[Tensor]]:
        def edit_input(_module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            z = inputs[0].view(*inputs[0].shape[:2], model.n_heads, -1)
            return (edit(layer, z).reshape(inputs[0].shape),)

        return edit_input

    handles = [projection(model, layer).register_forward_pre_hook(hook(layer)) for layer in range(model.n_layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(model: Model, pair: EncodedPair, ids: tuple[int, ...], metric: str) -> float:
    """The metric after one prompt, from all logits of the model's own forward pass."""
    with torch.no_grad():
        logits = model.hf(torch.tensor([ids])).logits[:, -1]
    chosen = Metric.of(metric, [pair], logits.device)
    if chosen.read_tokens is not None:
        logits = logits.gather(-1, chosen.read_tokens)
    return chosen.values(logits).item()


def outputs(model: Model, ids: tuple[int, ...]) -> list[Tensor]:
    """Every layer's z of one prompt, (1, position, head, d_head)."""
    seen: list[Tensor] = []

    def keep(_layer: int, z: Tensor) -> Tensor:
        seen.append(z.detach().clone())
        return z

    with torch.no_grad(), editing(model, keep):
        model.hf(torch.tensor([ids]))
    return seen


def exact_heads(model: Model, prompts: Prompts) -> Tensor:
    """M(clean) - M(clean with one head from the corrupted run), (prompt, layer, head)."""
    scores = torch.zeros(len(prompts), model.n_layers, model.n_heads)
    for row, pair in enumerate(prompts.pairs):
        corrupted = outputs(model, pair.corrupted)
        clean = run(model, pair, pair.clean, prompts.metric)
        for layer in range(model.n_layers):
            for head in range(model.n_heads):

                def edit(at: int, z: Tensor, layer: int = layer, head: int = head) -> Tensor:
                    if at == layer:
                        z = z.clone()
                        z[:, :, head] = corrupted[layer][:, :, head]  # noqa: B023, used before the next prompt
                    return z

                with editing(model, edit):
                    scores[row, layer, head] = clean - run(model, pair, pair.clean, prompts.metric)
    return scores


def keep_heads(model: Model, prompts: Prompts, kept: Tensor, instead: str = "corrupted") -> Tensor:
    """The metric with only the heads in kept (prompt, layer, head) running, (prompt,)."""
    values = torch.zeros(len(prompts))
    for row, pair in enumerate(prompts.pairs):
        corrupted = outputs(model, pair.corrupted)

        def edit(at: int, z: Tensor) -> Tensor:
            other = corrupted[at] if instead == "corrupted" else torch.zeros_like(z)  # noqa: B023
            return torch.where(kept[row, at][None, None, :, None], z, other)  # noqa: B023

        with editing(model, edit):
            values[row] = run(model, pair, pair.clean, prompts.metric)
    return values


def patterns_and_values(model: Model, ids: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Every layer's pattern (head, query, key) and values (head, key, d_head), from the model's own eager attention."""
    kind = model.hf.config.model_type
    values: list[Tensor] = []
    handles = []
    for layer in range(model.n_layers):
        name = "transformer.h.{}.attn.c_attn" if kind == "gpt2" else "model.layers.{}.self_attn.v_proj"
        module = model.hf.get_submodule(name.format(layer))
        handles.append(module.register_forward_hook(lambda _m, _i, out: values.append(out[0])))
    before = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            attentions = model.hf(torch.tensor([ids]), output_attentions=True).attentions
    finally:
        model.hf.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    result = []
    for pattern, value in zip(attentions, values, strict=True):
        if kind == "gpt2":
            value = value.chunk(3, dim=-1)[2]
            heads = model.n_heads
        else:
            heads = model.hf.config.num_key_value_heads
        value = value.view(len(ids), heads, -1).transpose(0, 1).repeat_interleave(model.n_heads // heads, dim=0)
        result.append((pattern[0], value))
    return result


def edge_slopes(model: Model, pair: EncodedPair, metric: str, step: float) -> Tensor:
    """Finite differences along each edge's clean-minus-corrupted contribution, (layer, head, query, key)."""
    clean, corrupted = patterns_and_values(model, pair.clean), patterns_and_values(model, pair.corrupted)
    n = len(pair)
    slopes = torch.zeros(model.n_layers, model.n_heads, n, n, dtype=torch.float64)
    for layer in range(model.n_layers):
        (a, v), (a2, v2) = clean[layer], corrupted[layer]
        for head in range(model.n_heads):
            for query in range(n):
                for key in range(query + 1):
                    change = a[head, query, key] * v[head, key] - a2[head, query, key] * v2[head, key]
                    ends = []
                    for sign in (1, -1):

                        def edit(at: int, z: Tensor) -> Tensor:
                            if at == layer:  # noqa: B023
                                z = z.clone()
                                z[:, query, head] += sign * step * change  # noqa: B023
                            return z

                        with editing(model, edit):
                            ends.append(run(model, pair, pair.clean, metric))
                    slopes[layer, head, query, key] = (ends[0] - ends[1]) / (2 * step)
    return slopes


def keep_edges(model: Model, pair: EncodedPair, metric: str, kept: Tensor) -> float:
    """The metric with only the edges in kept (layer, head, query, key) running.

    Layer by layer: each layer's pattern is read off a run in which all earlier layers are already edited.
    """
    corrupted = patterns_and_values(model, pair.corrupted)
    fixed: list[Tensor] = []

    def edit(at: int, z: Tensor) -> Tensor:
        return fixed[at] if at < len(fixed) else z

    for layer in range(model.n_layers):
        with editing(model, edit):
            a, v = patterns_and_values(model, pair.clean)[layer]
        a2, v2 = corrupted[layer]
        z = (a * kept[layer]) @ v + (a2 * ~kept[layer]) @ v2  # (head, query, d_head)
        fixed.append(z.transpose(0, 1)[None])
    with editing(model, edit):
        return run(model, pair, pair.clean, metric)


def gated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    bias: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    noise: Tensor | None = None,
    temperature: float = 1.0,
    renormalise: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gated layer as it is written down, over the whole T x T map; `noise` is logit(u)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    logit = (scores + bias.view(1, -1, 1, 1)) / temperature
    noisy = logit if noise is None else logit + noise
    soft = torch.sigmoid(noisy)
    gate = (noisy > 0).to(soft) + soft - soft.detach()  # straight through
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1) * gate * visible
    if renormalise:
        kept = weights.sum(dim=-1, keepdim=True)
        open_rows = kept.detach() > 0
        weights = torch.where(open_rows, weights / torch.where(open_rows, kept, 1.0), 0.0)
    real = visible.diagonal(dim1=-2, dim2=-1)  # (batch or 1, 1, query)
    edges = visible & real[..., None]
    share = (torch.sigmoid(logit) * edges).sum(dim=(-1, -2)) / edges.sum(dim=(-1, -2))
    return weights @ value, share
