"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable

import click

Command = Callable[..., None]


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
            help="auto (float32 on a CPU, else the model's own), float32, bfloat16, float16",
        ),
        click.option("--revision", help="branch, tag or commit of a hub model"),
        click.option(
            "--first-token", default="auto", help="token before every prompt: auto, none, or the token itself"
        ),
        click.option("--trust-remote-code", is_flag=True, help="run code that comes with the model"),
    ]
    for option in reversed(options):
        command = option(command)
    return command
