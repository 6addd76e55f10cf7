"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

Command = Callable[..., None]
Option = Callable[[Command], Command]


def with_options(command: Command, options: Sequence[Option]) -> Command:
    """As if each stood above the command, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def scoring_options(importance: str) -> Option:
    """How units are scored, ranked and replaced, with the default importance."""

    def chosen(name: str, values: list[str], default: str, about: str) -> Option:
        return click.option(name, type=click.Choice(values), default=default, show_default=True, help=about)

    scored = "how a unit is scored: to first order, by patching each, or by gradients along the path"
    options = [
        chosen("--importance", ["gradient", "exact", "ig"], importance, scored),
        chosen("--sign", ["absolute", "signed"], "absolute", "rank by |score|, or what helps first"),
        chosen("--replace", ["corrupted", "mean", "zero"], "corrupted", "what removed units become"),
    ]
    return lambda command: with_options(command, options)


def model_options(command: Command) -> Command:
    """How a model is loaded, the same in every command: the arguments of `gossamer.load`."""
    options = [
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="auto, cpu, cuda, cuda:N, mps, or spread (GPUs)",
        ),
        click.option(
            "--dtype",
            default="auto",
            help="auto (float32 on a CPU, else the model's own), float32, float64, bfloat16, float16",
        ),
        click.option("--revision", help="branch, tag or commit of a hub model"),
        click.option(
            "--first-token", default="auto", help="token before every prompt: auto, none, or the token itself"
        ),
        click.option("--trust-remote-code", is_flag=True, help="run code that comes with the model"),
    ]
    return with_options(command, options)
