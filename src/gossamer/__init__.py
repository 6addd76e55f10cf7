"""Gossamer: make a transformer's attention sparse and read its circuits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gossamer.errors import GossamerError

if TYPE_CHECKING:
    from gossamer.circuits.circuit import Circuit
    from gossamer.circuits.discover import circuit
    from gossamer.comparison.run import Panel, compare
    from gossamer.models import Model, load, wrap
    from gossamer.tasks import TASKS, Pair, Prompts, prompts
    from gossamer.training.run import evaluate, sparsify

__all__ = [
    "TASKS",
    "Circuit",
    "GossamerError",
    "Model",
    "Pair",
    "Panel",
    "Prompts",
    "circuit",
    "compare",
    "evaluate",
    "load",
    "prompts",
    "sparsify",
    "wrap",
]

# torch and transformers take seconds to import, so the public names come when they are first used.
_HOMES = {
    "Circuit": "gossamer.circuits.circuit",
    "circuit": "gossamer.circuits.discover",
    "Panel": "gossamer.comparison.run",
    "compare": "gossamer.comparison.run",
    "Model": "gossamer.models",
    "load": "gossamer.models",
    "wrap": "gossamer.models",
    "evaluate": "gossamer.training.run",
    "sparsify": "gossamer.training.run",
    "TASKS": "gossamer.tasks",
    "Pair": "gossamer.tasks",
    "Prompts": "gossamer.tasks",
    "prompts": "gossamer.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
