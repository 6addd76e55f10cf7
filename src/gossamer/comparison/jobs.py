"""One circuit of a run: found unless it is there already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gossamer.circuits.circuit import SUMMARY
from gossamer.circuits.discover import Progress, circuit
from gossamer.circuits.runs import request, run_folder
from gossamer.models import Model
from gossamer.tasks.pair import Prompts

# What a run says while it works: a bar for one job, told its name.
Bar = Callable[[str], AbstractContextManager[Progress]]


def silent(_job: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _stage, _done, _total: None)


def save_circuit(model: Model, prompts: Prompts, folder: Path, settings: dict[str, Any], name: str, bar: Bar) -> None:
    """Find the circuit and write it to `folder`; if it was interrupted there, go on."""
    if (folder / SUMMARY).exists():
        return
    with run_folder(folder, request(model, prompts, settings), force=True) as parts:
        with bar(name) as progress:
            found = circuit(model, prompts, parts=parts, progress=progress, **settings)
        found.save(folder)
