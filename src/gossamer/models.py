"""Load a causal language model, and make sure that Gossamer sees what the model does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from gossamer.attention.function import AttentionCall
from gossamer.attention.passes import Layer, Passes, Readout, first, session
from gossamer.errors import GossamerError

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of as many bytes

# Beginning-of-text tokens that exist for nothing else. GPT-2 and Pythia call their end-of-text token "bos" too,
# but were not trained with one in front of every text.
BEGINNINGS = {"<s>", "<bos>", "<BOS>", "<|begin_of_text|>", "<|startoftext|>"}


@dataclass(frozen=True, eq=False)
class Model:
    """A Hugging Face model whose attention Gossamer reproduces, with its tokenizer."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str | None
    first_token: int | None  # prepended to every prompt
    layers: tuple[Layer, ...]
    n_heads: int
    reuses_prefix: bool = True  # positions can be given to the model, so that a shared beginning is computed once
    _encoded: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def vocabulary(self) -> int:
        embed: Any = self.hf.get_input_embeddings()
        return int(embed.weight.shape[0])

    @property
    def context(self) -> int | None:
        """How many tokens the model takes, where its configuration says so."""
        length = getattr(self.hf.config.get_text_config(), "max_position_embeddings", None)
        return length if isinstance(length, int) and length > 0 else None

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of `text`, the model's first token in front where it has one."""
        if text not in self._encoded:
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
            if ids and max(ids) >= self.vocabulary:
                raise GossamerError(
                    f"the tokenizer does not fit {self.name!r}: it uses token {max(ids)}, the model knows "
                    f"{self.vocabulary}; load the model with its own tokenizer"
                )
            self._encoded[text] = ((self.first_token,) if self.first_token is not None else ()) + tuple(ids)
        return self._encoded[text]

    def fingerprint(self) -> str:
        """A hash of the weights: tells checkpoints apart, whatever their name.

        Of every tensor it takes the sums of the raw bits along each axis, which is as fast as reading them.
        """
        digest = hashlib.sha256()
        for key, tensor in self.hf.state_dict().items():
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            bits = tensor.detach().contiguous().view(BITS[tensor.element_size()]).view((*tensor.shape[:1], -1))
            for axis in (0, 1):
                digest.update(bits.sum(dim=axis, dtype=torch.int64).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """What a result says of the model."""
        first_token = None if self.first_token is None else self.tokenizer.convert_ids_to_tokens(self.first_token)
        return {
            "name": self.name,
            "revision": self.revision,
            "type": self.hf.config.model_type,
            "layers": self.n_layers,
            "heads_per_layer": self.n_heads,
            "weights": self.fingerprint(),
            "dtype": str(self.hf.dtype).removeprefix("torch."),
            "device": str(self.device),
            "first_token": first_token,
        }


def load(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    first_token: str = "auto",
    trust_remote_code: bool = False,
) -> Model:
    """Load a model by hub id, folder or bundled name, and check that its attention is reproduced.

    Args:
        name: "gpt2", "allenai/OLMo-7B-hf", a folder, or "bundled:induction".
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps", or "spread" (over all GPUs).
        dtype: "auto" (float32 on a CPU, else the checkpoint's own), "float32", "bfloat16" or "float16".
        revision: a branch, tag or commit of a hub model.
        first_token: "auto" (prepended where the model was trained with one), "none", or the token itself.
        trust_remote_code: run code that comes with the model. Only for models whose code you have read.

    Raises:
        GossamerError: the model can't be found, has no safetensors weights, has weights that are not numbers, or has
            attention that Gossamer does not reproduce.
    """
    name = str(name)
    if dtype not in ("auto", *DTYPES):
        raise GossamerError(f"unknown dtype {dtype!r}: choose auto, {', '.join(DTYPES)}")
    place = pick_device(device)
    if name.startswith("bundled:"):
        from gossamer.bundled import build

        hf, tokenizer = build(name.removeprefix("bundled:"))
        move(hf, "cpu" if place == "spread" else place)
        move(hf, DTYPES.get(dtype, torch.float32))
    else:
        hf, tokenizer = from_files(name, place, dtype, revision, trust_remote_code)
    commit = getattr(hf.config, "_commit_hash", None)
    return wrap(hf, tokenizer, name=name, revision=commit or revision, first_token=first_token)


def from_files(
    name: str, place: str, dtype: str, revision: str | None, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith((".", "/", "~")):
        check_folder(folder)
        name = str(folder)
    on_cpu = place == "cpu"
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **common)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            use_safetensors=True,
            dtype=DTYPES.get(dtype, torch.float32 if on_cpu else "auto"),
            device_map="auto" if place == "spread" else None,
            output_loading_info=True,
            **common,
        )
    except Exception as error:  # whatever a broken file or configuration makes transformers raise
        reason = " ".join(str(error).split())[:300]
        raise GossamerError(f"could not load {name!r} as a causal language model: {reason}") from error
    finally:
        hf_logging.set_verbosity(level)
    hf, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise GossamerError(
            f"the weights of {name!r} lack {len(missing)} tensors, the first {missing[0]!r}: "
            "transformers would fill them with random numbers"
        )
    if place not in ("spread", "cpu"):
        move(hf, place)
    return hf, tokenizer


def move(hf: nn.Module, where: str | torch.dtype) -> None:
    hf.to(where)  # in place; transformers types its own `to` too narrowly


def check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise GossamerError(f"{folder} is not a model folder: it has no config.json")
    if any(folder.glob("*.safetensors")):
        return
    pickled = next(iter([*folder.glob("*.bin"), *folder.glob("*.pt")]), None)
    if pickled is not None:
        raise GossamerError(f"{folder} holds only pickled weights ({pickled.name}): convert them to safetensors first")
    raise GossamerError(f"{folder} holds no weights: expected model.safetensors beside config.json")


def pick_device(device: str) -> str:
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if device == "spread":
        return "spread"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps"):
        raise GossamerError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:N, mps or spread")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise GossamerError(f"device {device!r} is not available on this machine: use cpu")
    return device


def wrap(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str | None = None,
    revision: str | None = None,
    first_token: str = "auto",
) -> Model:
    """Make a Gossamer model of a loaded transformers model, after the same checks as `load`."""
    name = name or hf.config.name_or_path or type(hf).__name__
    check_weights(hf, name)
    layers, n_heads, reuses_prefix = check_attention(hf, name)
    return Model(
        hf=hf,
        tokenizer=tokenizer,
        name=name,
        revision=revision,
        first_token=find_first_token(tokenizer, first_token),
        layers=layers,
        n_heads=n_heads,
        reuses_prefix=reuses_prefix,
    )


def find_first_token(tokenizer: PreTrainedTokenizerBase, choice: str) -> int | None:
    """The token to prepend: the tokenizer's own habit, or a beginning token that it knows but does not add."""
    if choice == "none":
        return None
    if choice != "auto":
        token = tokenizer.get_vocab().get(choice)
        if token is None:
            raise GossamerError(
                f"first token {choice!r} is not in the tokenizer's vocabulary: give one that is, or none"
            )
        return int(token)
    bos = tokenizer.bos_token_id
    added = tokenizer("a").input_ids[:1]
    if added != tokenizer("a", add_special_tokens=False).input_ids[:1] and added in (
        [bos],
        [tokenizer.cls_token_id],
    ):
        return int(added[0])
    return int(bos) if bos is not None and str(tokenizer.bos_token) in BEGINNINGS else None


def check_weights(hf: PreTrainedModel, name: str) -> None:
    for key, tensor in [*hf.named_parameters(), *hf.named_buffers()]:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise GossamerError(f"the weights of {name!r} are broken: {key} holds NaN or infinity")


def check_attention(hf: PreTrainedModel, name: str) -> tuple[tuple[Layer, ...], int, bool]:
    """Run a few tokens and refuse the model unless our attention gives its logits, and is all that moves information.

    1. On two sequences of unequal length, so that one is padded, our logits equal those of the model's own eager
       attention, and no position looks at a later one.
    2. A sequence in which every head is replaced by its output on another one, equal only in its last token, ends in
       the other's logits: the definition of "no unit kept". A model that mixes tokens by other means (state space,
       convolution) fails.
    3. Starting at a later layer gives the same logits. So does running the later positions after a prefix; a model
       that takes no positions still works, without that shortcut.
    """
    kind = hf.config.model_type

    def refuse(reason: str) -> GossamerError:
        return GossamerError(f"{name!r} ({kind}) is not supported: {reason}")

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
            with session(hf, (), implementation="eager") as passes:
                own = passes(ids, mask)
            with session(hf, ()) as passes:
                ours = passes(ids, mask, probe=watch)
            layers, n_heads = watch.layers(hf, refuse)
            if not torch.isfinite(own[real]).all():
                raise refuse("its logits on a few random tokens are not finite")
            tolerance = logit_tolerance(hf, own, ids, mask, gap)
            if gap(own, ours) > tolerance:
                raise refuse(f"with Gossamer's attention its logits differ by {gap(own, ours):.2g} from its own")
            with session(hf, layers) as passes:
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
    except GossamerError as error:
        raise error if str(error).startswith(repr(name)) else refuse(str(error)) from error
    except Exception as error:  # the model's own forward pass, or one that our calls don't suit
        raise refuse(f"a pass over a few tokens failed ({' '.join(str(error).split())[:200]})") from error
    return layers, n_heads, gap(later, own[:, 5:]) <= tolerance


def logit_tolerance(hf: PreTrainedModel, own: Tensor, ids: Tensor, mask: Tensor, gap: Any) -> float:
    """How much logits may differ. In half precision that is what the model's own two attentions differ by, and more."""
    scale = max(own[mask.bool()].float().std().item(), 1e-3)
    if hf.dtype in (torch.float32, torch.float64):
        return 1e-4 * scale
    noise = 0.0
    if hf._supports_sdpa:
        with session(hf, (), implementation="sdpa") as passes:
            noise = gap(passes(ids, mask), own)
    return min(max(0.1 * scale, 3 * noise), 0.5 * scale)


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

    def layers(self, hf: PreTrainedModel, refuse: Any) -> tuple[tuple[Layer, ...], int]:
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
        return layer_shapes(hf, modules), heads.pop()


def decoder_layers(hf: PreTrainedModel, attentions: Sequence[nn.Module]) -> list[nn.Module] | None:
    """The members of the ModuleList that holds these attention modules, one in each member."""
    for module in hf.modules():
        if isinstance(module, nn.ModuleList) and len(module) == len(attentions):
            members = list(module)
            inside = (any(m is attention for m in member.modules()) for member, attention in zip(members, attentions))
            if all(inside):
                return members
    return None


def layer_shapes(hf: PreTrainedModel, modules: Sequence[nn.Module]) -> tuple[Layer, ...]:
    """What each layer returns, seen in a pass of one token."""
    lengths: list[int | None] = []

    def note(_module: nn.Module, _inputs: Any, out: Any) -> None:
        first(out)  # a tensor, or a tuple that starts with one
        lengths.append(len(out) if isinstance(out, tuple) else None)

    handles = [module.register_forward_hook(note) for module in modules]
    try:
        with torch.no_grad(), session(hf, ()) as passes:
            passes(torch.zeros(1, 1, dtype=torch.long, device=hf.device))
    finally:
        for handle in handles:
            handle.remove()
    return tuple(Layer(module, length) for module, length in zip(modules, lengths, strict=True))
