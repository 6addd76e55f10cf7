"""Models that come with the package.

`bundled:induction` is built by hand. `bundled:gpt2` and `bundled:olmo` are small models of those architectures, trained
on the text of `gossamer.bundled.text` by `gossamer.bundled.train`; with `-sparse`, their sparse twins.
"""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gossamer.bundled import planted
from gossamer.errors import GossamerError
from gossamer.models import BUNDLED

BUILT = {"induction": planted.build}
MODELS = Path(__file__).parent / "models"
TRAINED = ("gpt2", "olmo")


def shipped() -> list[str]:
    """The trained models that are in this installation with their sparse twins."""
    return [name for name in TRAINED if all((MODELS / n / "config.json").exists() for n in (name, f"{name}-sparse"))]


def names() -> list[str]:
    return [*BUILT, *(name for trained in shipped() for name in (trained, f"{trained}-sparse"))]


def folder(name: str) -> Path | None:
    """The folder of a bundled model, None if it is built.

    Raises:
        GossamerError: there is no such model.
    """
    short = name.removeprefix(BUNDLED)
    if short in BUILT:
        return None
    if not (short.removesuffix("-sparse") in TRAINED and (MODELS / short / "config.json").exists()):
        raise GossamerError(
            f"unknown bundled model {short!r}: choose {', '.join(BUNDLED + known for known in names())}"
        )
    return MODELS / short


def build(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return BUILT[name.removeprefix(BUNDLED)]()


def mix_of(model: str) -> str:
    """Which text a bundled model was trained on."""
    short = model.removeprefix(BUNDLED).removesuffix("-sparse")
    if not model.startswith(BUNDLED) or short not in TRAINED:
        raise GossamerError(
            f"--data bundled is the text of {' and '.join(BUNDLED + known for known in TRAINED)}, and {model!r} is "
            "neither: give a text file, a hub data set id, or self"
        )
    return short
