"""The command line: parse, call one function, write files.

torch and transformers take seconds to import: what needs them is imported in the command, so that --help is instant.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
from safetensors import SafetensorError

from gossamer.cli import circuits, comparison, training
from gossamer.errors import GossamerError


@click.group(context_settings={"max_content_width": 120})
@click.version_option(package_name="gossamer")
def app() -> None:
    """Make a transformer's attention sparse and read its circuits."""


for command in (
    comparison.reproduce,
    comparison.compare,
    comparison.figures,
    comparison.report,
    comparison.open_report,
    circuits.circuits,
    circuits.plot,
    circuits.tasks,
    training.sparsify,
    training.evaluate,
    training.train_bundled,
):
    app.add_command(command)


def interrupted() -> NoReturn:
    sys.stderr.write("gossamer: interrupted; the same command goes on from here (sparsify: with --resume)\n")
    sys.exit(130)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What the user can mend is one line on standard error and exit code 2."""
    try:
        app.main(arguments, prog_name="gossamer", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):  # first: click's Abort is a RuntimeError
        interrupted()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except (GossamerError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        sys.stderr.write("gossamer: " + " ".join(message.split()) + "\n")
        sys.exit(getattr(error, "exit_code", 2))
    except (OSError, SafetensorError) as error:  # no space, no permission, a name too long
        if isinstance(error.__context__, KeyboardInterrupt):  # while a file was being closed
            interrupted()
        sys.stderr.write("gossamer: could not read or write: " + " ".join(str(error).split()) + "\n")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        from gossamer.circuits.batch import out_of_memory

        if not out_of_memory(error):
            raise
        sys.stderr.write(f"gossamer: out of memory ({' '.join(str(error).split())}): do less at once\n")
        sys.exit(2)
