"""All that decides a post-training run, with defaults that need no tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gossamer.errors import GossamerError

OPTIMISERS = ("adamw", "adafactor", "sgd")
SCHEDULES = ("wsd", "linear", "cosine", "constant")
DECAY = 0.3  # of the steps of "wsd" (warm-up, stable, decay)
MATCH = 0.95  # of the objective, with distillation
TEMPERATURE = 0.5  # of decided gates: at 1, shut ones are half of what sigmoids count
PREDICT = 4  # the states of all tokens say nearly all; a large vocabulary takes most of the time
TRAINED = ("all", "body", "attention")
PRECISIONS = ("no", "bf16")
OF_GATES = ("bias", "learn_bias", "noise", "temperature", "renormalise", "slack", "slack_ends", "aim", "dual_rate")


@dataclass(frozen=True, kw_only=True)
class Settings:
    # the constraint
    margin: float = 0.01  # nats above the base model's held-out loss
    tau: float | None = None  # the bound itself, in place of base loss + margin
    penalty: bool = True  # False only fine-tunes, every gate open: what training alone does
    distill: bool | None = None  # train on what the base model makes of the text, not on the text; None if penalty
    match: float | None = (
        None  # share of the objective that is the base model's states; None for MATCH with distillation, else 0
    )
    predict: int | None = (
        None  # of so many tokens, one's prediction is trained on; None for PREDICT with states, else 1
    )
    slack: float = 4.0  # margins that the loss may be above the base model's at first; 1 is none
    slack_ends: float = 0.5  # of the steps: learning back what the edges did takes the other half
    aim: float = 0.8  # margins allowed then: what is kept must be within the bound, and loss and bound are noisy
    dual_rate: float = 0.01  # how fast the multiplier moves
    # the gate
    bias: float | None = None  # where every gate's bias starts; None calibrates each head
    learn_bias: bool = True
    noise: float = 0.0  # of the gates in training: 1 draws them (published), 0 decides them
    temperature: float | None = None  # of the gates in training: the published 1 if they are drawn, else TEMPERATURE
    renormalise: bool = False
    # the optimiser
    steps: int = 1000
    batch: int = 8  # blocks a step, over all processes
    accumulate: int = 1  # parts a process runs its share of the batch in
    train: str = "body"  # all weights, all but the embeddings, or those of attention
    optimiser: str = "adamw"
    lr: float | None = None  # None finds one that suits
    bias_lr: float = 1e-2
    weight_decay: float = 0.0
    warmup: int = 20
    schedule: str = "linear"
    clip: float = 1.0
    precision: str = "no"
    lora: int | None = None
    merge: bool = False
    # the text
    block: int | None = None  # tokens; None for the model's context, at most 1,024
    held_out: int = 64  # blocks
    seed: int = 0
    every: int = 50  # steps between evaluations, each followed by a checkpoint

    def check(self) -> None:
        at_least: dict[str, tuple[float, bool]] = {  # bound, and whether it is excluded
            "margin": (0, False),
            "tau": (0, True),
            "match": (0, False),
            "predict": (1, False),
            "slack": (1, False),
            "slack_ends": (0, True),
            "aim": (0, True),
            "dual_rate": (0, True),
            "steps": (1, False),
            "batch": (1, False),
            "accumulate": (1, False),
            "noise": (0, False),
            "temperature": (0.01, False),
            "lr": (0, True),
            "bias_lr": (0, False),
            "weight_decay": (0, False),
            "warmup": (0, False),
            "clip": (0, True),
            "lora": (1, False),
            "block": (2, False),
            "held_out": (1, False),
            "seed": (0, False),
            "every": (1, False),
        }
        for name, (bound, excluded) in at_least.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value):
                raise GossamerError(f"{option(name)} {value}: give a finite number")
            if value < bound or (excluded and value == bound):
                raise GossamerError(f"{option(name)} {value}: give {'more than' if excluded else 'at least'} {bound}")
        for name, most in {
            "margin": 100,
            "match": 1,
            "slack": 1000,
            "slack_ends": 1,
            "aim": 1,
            "dual_rate": 1,
            "noise": 1,
            "temperature": 10,
            "lr": 1,
            "bias_lr": 10,
            "weight_decay": 1,
        }.items():
            if (getattr(self, name) or 0) > most:
                raise GossamerError(f"{option(name)} {getattr(self, name):g}: give at most {most}")
        if self.bias is not None and not abs(self.bias) <= 1e4:
            raise GossamerError(f"--bias {self.bias}: give a number between -10000 and 10000")
        for name, choices in (
            ("train", TRAINED),
            ("optimiser", OPTIMISERS),
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in choices:
                raise GossamerError(f"unknown {option(name)} {getattr(self, name)!r}: choose {', '.join(choices)}")
        if self.tau is not None and self.margin != Settings.margin:
            raise GossamerError(f"--tau {self.tau:g} and --margin {self.margin:g} are two bounds: leave out one")
        for name in OF_GATES if not self.penalty else ():
            if getattr(self, name) != getattr(Settings, name):
                flag = "--fix-bias" if name == "learn_bias" else option(name)
                raise GossamerError(f"{flag} with --no-penalty: there are no gates, leave out one")
        if not self.penalty and self.distill:
            raise GossamerError("--distill with --no-penalty: KL to the base model is 0 from the start, leave out one")
        if not self.penalty and self.match:
            raise GossamerError("--match with --no-penalty: it would hold the model to what it is, leave out one")
        if self.merge and self.lora is None:
            raise GossamerError("--merge merges LoRA adapters: give --lora too")

    def predicted(self, step: int, tokens: int) -> slice:
        """Which of a block's tokens have their predictions trained on at a step: each in turn."""
        every = min(self.predict or 1, tokens)
        return slice(step % every, None, every)

    def slack_factor(self, step: int) -> float:
        """Margins allowed at a step: ever fewer, in the end `aim`."""
        if not self.penalty:
            return 1.0
        return self.aim + (self.slack - self.aim) * max(0.0, 1 - step / (self.slack_ends * self.steps))

    def lr_factor(self, step: int) -> float:
        """Of the learning rate at a step, the first being 0: up over the warm-up, then down to the end."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        left = 1 - (step - self.warmup) / max(1, self.steps - self.warmup)
        factors = {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "wsd": min(1.0, left / DECAY)}
        return factors.get(self.schedule, 1.0)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
