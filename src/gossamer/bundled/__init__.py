"""Models that come with the package."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gossamer.bundled import planted
from gossamer.errors import GossamerError

MODELS = {"induction": planted.build}


def build(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if name not in MODELS:
        raise GossamerError(f"unknown bundled model {name!r}: choose {', '.join('bundled:' + m for m in MODELS)}")
    return MODELS[name]()
