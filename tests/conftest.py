from __future__ import annotations

import os

# Some CPUs claim bfloat16 instructions that they don't have; the setting must be there before torch is.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import gossamer
from gossamer.bundled import planted
from gossamer.models import Model
from tests.families import FAMILIES, random_model

SHARED = Path(os.environ.get("GOSSAMER_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def stories() -> Path:
    return shared("models/stories15M")


def shared(name: str) -> Path:
    """A file of the test material, which is not part of the repository."""
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not there: set GOSSAMER_SHARED to the folder with the test models and tokenizers")
    return SHARED / name


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hf(family: str) -> PreTrainedModel:
    return random_model(family)


def wrapped(family: str, dtype: torch.dtype = torch.float32) -> Model:
    """A random model that speaks the words of the induction task."""
    _, tokenizer = planted.build()
    hf = random_model(family, vocabulary=len(planted.VOCABULARY))
    hf.to(dtype)  # type: ignore[arg-type]
    return gossamer.wrap(hf, tokenizer, name=f"random {family}")


@pytest.fixture
def model(family: str) -> Model:
    return wrapped(family)


@pytest.fixture(scope="session")
def planted_model() -> Model:
    return gossamer.load("bundled:induction")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with the planted model in it."""
    hf, tokenizer = planted.build()
    hf.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"
