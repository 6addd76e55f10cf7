"""The model under training, and its base: the same weights before it, with every gate open."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gossamer.attention import gating
from gossamer.attention.function import NAME, AttentionCall, probing
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.training.losses import Readable, token_losses
from gossamer.training.settings import Settings

OPEN = 1e4  # a bias with which no gate ever shuts
START = 0.5  # of the margin that shutting gates may cost before training begins


class Student:
    """With full fine-tuning, a copy of the model; with LoRA the model itself, whose adapters can be switched off."""

    def __init__(self, model: Model, settings: Settings) -> None:
        if model.sparse:
            raise GossamerError(f"{model.name!r} is sparse already: give the dense model it was made from")
        if len(set(getattr(model.hf, "hf_device_map", {"": 0}).values())) > 1:
            raise GossamerError("a model spread over GPUs can't be trained: give one --device, or use --lora on one")
        self.model = model
        self.peft: Any = None
        self.before = (model.hf.config._attn_implementation, {p: p.requires_grad for p in model.hf.parameters()})
        if settings.lora is None:
            if model.hf.dtype not in (torch.float32, torch.float64):
                raise GossamerError(
                    f"training the weights needs them in float32, these are {model.hf.dtype}: load with "
                    "--dtype float32 (and --precision bf16 to compute in bfloat16), or train adapters with --lora"
                )
            self.hf: PreTrainedModel = copy.deepcopy(model.hf)
        else:
            from peft import LoraConfig, get_peft_model

            rank, width = settings.lora, model.hf.config.get_text_config().hidden_size
            if rank > width:
                raise GossamerError(f"--lora {rank}: {model.name!r} is {width} wide, give at most that")
            config = LoraConfig(
                r=rank,
                lora_alpha=2 * rank,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
                fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.hf.modules()),
            )
            torch.manual_seed(settings.seed)  # adapters start at random
            self.peft = get_peft_model(model.hf, config)
            self.hf = model.hf
        self.hf.eval()  # no dropout: the loss is held to that of the base model, which has none
        self.hf.set_attn_implementation(NAME)
        names = {module: name for name, module in model.hf.named_modules()}
        self.attentions = [self.hf.get_submodule(names[layer.attention]) for layer in model.layers]
        if settings.lora is None:
            self.choose_trained(settings.train)
        self.read = Readable.of(self.hf)
        self.read_base = self.read if self.peft is not None else Readable.of(model.hf)

    def choose_trained(self, which: str) -> None:
        self.hf.requires_grad_(which != "attention")
        if which == "attention":
            for module in self.attentions:
                module.requires_grad_(True)
        if which == "body":
            for embedding in (self.hf.get_input_embeddings(), self.hf.get_output_embeddings()):
                embedding.requires_grad_(False)

    def merged(self) -> PreTrainedModel:
        """A copy of the model with its adapters in the weights."""
        hf: PreTrainedModel = copy.deepcopy(self.peft).merge_and_unload()
        return hf

    def release(self) -> None:
        """Give the model back as it was."""
        if self.peft is None:
            return
        gating.remove(self.hf)
        self.peft.unload()
        self.hf.__dict__.pop("peft_config", None)
        implementation, trainable = self.before
        self.hf.set_attn_implementation(implementation)
        for parameter, required in trainable.items():
            parameter.requires_grad_(required)

    @contextmanager
    def base(self) -> Iterator[Readable]:
        """Inside, the base model is there to be run."""
        if self.peft is None:
            with torch.no_grad():
                yield self.read_base
        else:
            with torch.no_grad(), self.peft.disable_adapter(), probing(None, open=True):
                yield self.read_base

    def install_gates(self, settings: Settings, text: Callable[[], Tensor] | None = None, margin: float = 0.0) -> None:
        """Put the gates in. Without a given bias, the heads get biases that shut what matters least on some text."""
        if not settings.penalty:
            bias = torch.full((self.model.n_layers, self.model.n_heads), OPEN)
            gating.install(self.attentions, bias, learned=False, renormalise=settings.renormalise)
            return
        if settings.bias is not None or text is None:
            bias = torch.full((self.model.n_layers, self.model.n_heads), settings.bias or 0.0)
        else:
            bias = self.calibrated(text().to(self.hf.device), START * margin, settings.renormalise)
        gating.install(self.attentions, bias, learned=settings.learn_bias, renormalise=settings.renormalise)

    @torch.no_grad()
    def calibrated(self, text: Tensor, allowed: float, renormalise: bool) -> Tensor:
        """Biases (layer, head) with which every head loses the same share of its attention, as large a share as a KL of
        `allowed` lets it."""
        shares = torch.cat([torch.zeros(1), torch.logspace(-5, -0.3, 31)]).double()
        quantiles = torch.zeros(len(shares), self.model.n_layers, self.model.n_heads)

        def probe(call: AttentionCall) -> Tensor:
            for head in range(self.model.n_heads):
                scores, order = call.scores[:, head].float().flatten().sort()
                mass = call.pattern[:, head].double().flatten()[order].cumsum(dim=0)
                at = torch.searchsorted(mass, shares.to(mass) * mass[-1]).clamp(max=len(scores) - 1)
                quantiles[:, call.layer, head] = scores[at].cpu()
            return call.output

        with probing(probe):
            self.read(text)
        with self.base() as base:
            base_hidden = base(text)
        quantiles[0] -= 1  # so that all edges are open
        low, high = 0, len(shares)  # the share at `low` costs little enough, that at `high` too much
        while high - low > 1:
            middle = (low + high) // 2
            gating.install(self.attentions, -quantiles[middle], renormalise=renormalise)
            kl = token_losses(text, self.read(text), self.read, base_hidden, self.read_base).kl
            low, high = (middle, high) if kl <= allowed else (low, middle)
        gating.remove(self.hf)
        return -quantiles[low]

    def trainable(self) -> dict[str, nn.Parameter]:
        """What is trained and saved, by name."""
        return {name: parameter for name, parameter in self.hf.named_parameters() if parameter.requires_grad}

    def weights(self) -> dict[str, Tensor]:
        """The trained weights and the gates' biases."""
        fixed = {n: p for n, p in self.hf.named_parameters() if f"{gating.ATTRIBUTE}.bias" in n}
        return {**self.trainable(), **fixed}

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        mine = self.weights()
        if mine.keys() != weights.keys():
            odd = sorted(mine.keys() ^ weights.keys())[0]
            raise GossamerError(f"the checkpoint is of another model: {odd!r} is not in both")
        for name, parameter in mine.items():
            parameter.copy_(weights[name])


def make_optimiser(student: Student, settings: Settings, lr: float, *, bias_lr: float) -> torch.optim.Optimizer:
    biases = {id(gate.bias) for gate in gating.gates(student.hf)}
    every = list(student.trainable().values())
    groups = [
        {
            "params": [p for p in every if id(p) not in biases],
            "peak_lr": lr,
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for p in every if id(p) in biases], "peak_lr": bias_lr, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999))
    if settings.optimiser == "adafactor":
        return torch.optim.Adafactor(groups, lr=lr)
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)
