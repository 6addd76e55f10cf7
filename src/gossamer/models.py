"""Load a causal language model, and make sure that Gossamer sees what the model does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from gossamer.attention import gating
from gossamer.attention.check import check_attention
from gossamer.attention.function import NAME, refuse_ungated
from gossamer.attention.passes import Layer
from gossamer.errors import GossamerError

BUNDLED = "bundled:"  # before the name of a model that comes with the package

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of as many bytes

# Beginning-of-text tokens that exist for nothing else. GPT-2 and Pythia call their end-of-text token "bos" too,
# but were not trained with one in front of every text.
BEGINNINGS = {"<s>", "<bos>", "<BOS>", "<|begin_of_text|>", "<|startoftext|>"}


@dataclass(frozen=True, eq=False)
class Model:
    """A Hugging Face model whose attention Gossamer reproduces, with its tokenizer."""

    hf: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    name: str
    revision: str | None
    first_token: int | None  # prepended to every prompt
    layers: tuple[Layer, ...] = field(repr=False)
    n_heads: int
    reuses_prefix: bool = True  # positions can be given to the model, so that a shared beginning is computed once
    _encoded: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def sparse(self) -> bool:
        return bool(gating.gates(self.hf))

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
            self.check_tokens(ids)
            self._encoded[text] = ((self.first_token,) if self.first_token is not None else ()) + tuple(ids)
        return self._encoded[text]

    def check_tokens(self, ids: Sequence[int]) -> None:
        if ids and max(ids) >= self.vocabulary:
            raise GossamerError(
                f"the tokenizer does not fit {self.name!r}: it uses token {max(ids)}, the model knows "
                f"{self.vocabulary}; load the model with its own tokenizer"
            )

    def fingerprint(self) -> str:
        return fingerprint(self.hf)

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
            "sparse": self.sparse,
        }


def fingerprint(hf: PreTrainedModel) -> str:
    """A hash of the weights: tells checkpoints apart, whatever their name.

    Of every tensor it takes the sums of the raw bits along each axis, which is as fast as reading them.
    """
    digest = hashlib.sha256()
    for key, tensor in hf.state_dict().items():
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        bits = tensor.detach().contiguous().view(BITS[tensor.element_size()]).view((*tensor.shape[:1], -1))
        for axis in (0, 1):
            digest.update(bits.sum(dim=axis, dtype=torch.int64).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


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
        name: "gpt2", "allenai/OLMo-7B-hf", a folder, a .gguf file, or a bundled name such as
            "bundled:gpt2".
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps", or "spread" (over all GPUs).
        dtype: "auto" (float32 on a CPU, else the checkpoint's own), "float32", "float64", "bfloat16" or "float16".
        revision: a branch, tag or commit of a hub model.
        first_token: "auto" (prepended where the model was trained with one, as its sparse twin was post-trained),
            "none", or the token itself.
        trust_remote_code: run code that comes with the model. Only for models whose code you have read.

    Raises:
        GossamerError: the model can't be found, has no safetensors weights, has weights that are not numbers, or has
            attention that Gossamer does not reproduce.
    """
    name = str(name)
    if dtype not in ("auto", *DTYPES):
        raise GossamerError(f"unknown dtype {dtype!r}: choose auto, {', '.join(DTYPES)}")
    place = pick_device(device)
    if name.startswith(BUNDLED) and find_folder(name) is None:
        from gossamer import bundled

        hf, tokenizer = bundled.build(name)
        move(hf, "cpu" if place == "spread" else place)
        cast(hf, DTYPES.get(dtype, torch.float32))
    else:
        hf, tokenizer = from_files(name, place, dtype, revision, trust_remote_code)
    commit = getattr(hf.config, "_commit_hash", None)
    if name.startswith(BUNDLED) or find_folder(name) is not None:
        revision = None  # what is here has none: it is that of the models on the hub that are compared with it
    return wrap(hf, tokenizer, name=name, revision=commit or revision, first_token=first_token)


def from_files(
    name: str, place: str, dtype: str, revision: str | None, trust_remote_code: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = find_folder(name)
    if folder is not None:
        check_folder(folder)
        name = str(folder)
    on_cpu = place == "cpu"
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    name_of = repr(name)
    try:
        config = read_config(name, common)
        section = getattr(config, gating.SECTION, {})
        base = section["base"] if section.get("adapter") else None  # only adapters are here, the weights elsewhere
        weights = {**files_of(name), **common}
        wanted = DTYPES.get(dtype, torch.float32 if on_cpu else "auto")
        if base is not None:
            if (base_folder := find_folder(base["name"])) is not None:
                check_folder(base_folder)
            weights |= {**files_of(str(base_folder or base["name"])), "revision": base["revision"]}
            name_of = f"{base['name']!r}, the base of the adapters in {name!r},"
        tokenizer = AutoTokenizer.from_pretrained(**files_of(name), config=config, **common)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config=config,
            use_safetensors=True,
            dtype=wanted if base is None else DTYPES[base["dtype"]],  # in which its weights are known
            device_map="auto" if place == "spread" else None,
            output_loading_info=True,
            **weights,
        )
    except GossamerError as error:
        raise GossamerError(f"could not load the base of the adapters in {name!r}: {error}") from error
    except Exception as error:  # whatever a broken file or configuration makes transformers raise
        reason = " ".join(str(error).split())[:300]
        raise GossamerError(f"could not load {name_of} as a causal language model: {reason}") from error
    finally:
        hf_logging.set_verbosity(level)
    hf, report = loaded
    if "gguf_file" in weights:  # the weights are plain numbers now, but transformers would not save them as such
        for leftover in ("hf_quantizer", "quantization_method", "is_quantized"):
            hf.__dict__.pop(leftover, None)
        hf.config.__dict__.pop("quantization_config", None)
    if missing := sorted(report["missing_keys"]):
        raise GossamerError(
            f"the weights of {name!r} lack {len(missing)} tensors, the first {missing[0]!r}: "
            "transformers would fill them with random numbers"
        )
    if base is not None:
        if fingerprint(hf) != base["weights"]:
            raise GossamerError(
                f"{base['name']!r} has other weights than the model that the adapters in {name!r} were trained on: "
                "put that one in its place, or merge adapters when training (--merge)"
            )
        from peft import PeftModel

        if isinstance(wanted, torch.dtype):
            cast(hf, wanted)
        hf = PeftModel.from_pretrained(hf, name, subfolder="adapter", revision=revision).merge_and_unload()
    if place not in ("spread", "cpu"):
        move(hf, place)
    return hf, tokenizer


def find_folder(name: str) -> Path | None:
    """Where a model's files are, if `name` is not a hub id."""
    if name.startswith(BUNDLED):
        from gossamer import bundled

        return bundled.folder(name)
    folder = Path(name).expanduser()
    return folder if folder.exists() or is_gguf(folder) or name.startswith((".", "/", "~")) else None


def files_of(name: str) -> dict[str, str]:
    """How transformers is told where a model's files are: a folder or hub id, or a GGUF file, which it dequantises."""
    if not is_gguf(name):
        return {"pretrained_model_name_or_path": name}
    path = Path(name).expanduser()
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def is_gguf(name: str | Path) -> bool:
    return Path(name).suffix.lower() == ".gguf" and not Path(name).expanduser().is_dir()


def read_config(name: str, common: dict[str, Any]) -> PreTrainedConfig:
    """The model's configuration. That of a sparse model is written so that transformers alone refuses it."""
    if is_gguf(name):
        own: PreTrainedConfig = AutoConfig.from_pretrained(**files_of(name), **common)
        return own
    raw, _ = PreTrainedConfig.get_config_dict(name, **common)
    if gating.SECTION not in raw:
        plain: PreTrainedConfig = AutoConfig.from_pretrained(name, **common)
        return plain
    raw = {key: value for key, value in raw.items() if key not in ("attn_implementation", "_attn_implementation")}
    model_type = str(raw.get("model_type")).removeprefix(gating.MODEL_TYPE)
    config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict({**raw, "model_type": model_type})
    return config


def move(hf: nn.Module, where: str) -> None:
    hf.to(where)  # in place; transformers types its own `to` too narrowly


def cast(hf: nn.Module, dtype: torch.dtype) -> None:
    """The weights alone, as transformers loads a model at a dtype: rotary frequencies in bfloat16 would move positions
    by whole tokens."""
    for weight in hf.parameters():
        weight.data = weight.data.to(dtype)


def check_folder(folder: Path) -> None:
    if is_gguf(folder):
        if not folder.is_file():
            raise GossamerError(f"{folder}: there is no such file")
        if find_spec("gguf") is None:
            raise GossamerError(f"{folder} is a GGUF file, and reading one takes the gguf package: pip install gguf")
        return
    if not (folder / "config.json").is_file():
        if (folder / "checkpoints").is_dir():
            raise GossamerError(
                f"{folder} holds a post-training run without a model: it was interrupted, or no state met the bound; "
                "go on with --resume"
            )
        raise GossamerError(f"{folder} is not a model folder: it has no config.json")
    if any(folder.glob("*.safetensors")) or any(folder.glob("adapter/*.safetensors")):
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
    section = hf.config.__dict__.pop(gating.SECTION, None)  # or our attention asks for the gates, which come later
    try:
        layers, n_heads, reuses_prefix = check_attention(hf, name)
    finally:
        if section is not None:
            setattr(hf.config, gating.SECTION, section)
    if section is not None and not gating.gates(hf):
        bias, renormalise = gating.from_config(section, len(layers), n_heads, name)
        gating.install([layer.attention for layer in layers], bias, renormalise=renormalise)
        for layer in layers:
            layer.attention.register_forward_pre_hook(refuse_ungated)
    if gating.gates(hf):
        # And so it stays, so that the model is sparse outside of Gossamer's passes too.
        hf.set_attn_implementation(NAME)
    if first_token == "auto" and section is not None:
        first_token = section.get("first_token", "auto")
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
