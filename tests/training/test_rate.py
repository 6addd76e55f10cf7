from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gossamer.training import rate
from gossamer.training.rate import RATES, STEPS, excess_of, find_rate
from gossamer.training.settings import Settings
from gossamer.training.student import Student
from tests.conftest import wrapped


@pytest.mark.parametrize("distill", [True, False])
@pytest.mark.parametrize("part", [4, 2])
def test_it_is_the_highest_that_hardly_raises_the_loss(distill: bool, part: int) -> None:
    """Checked by running the steps once more, literally, at the found rate and at the one above."""
    model = wrapped("gpt2")
    settings = replace(Settings(), distill=distill, match=0.9 * distill, batch=4, train="all")
    student = Student(model, settings)
    text = torch.randint(model.vocabulary, (STEPS * 4 + 4, 16), generator=torch.Generator().manual_seed(0))
    student.install_gates(settings, lambda: text[:4], 0.02)
    text = text[4:]
    weights = {name: weight.clone() for name, weight in student.weights().items()}
    found = find_rate(student, text, settings, margin=0.02, part=part)
    assert all(torch.equal(weight, weights[name]) for name, weight in student.weights().items())
    assert all(parameter.grad is None for parameter in student.trainable().values())

    def judged(lr: float, steps: bool) -> float:
        last = []
        optimiser = torch.optim.AdamW(
            [p for name, p in student.trainable().items() if "gossamer" not in name], weight_decay=0.0
        )
        for step, batch in enumerate(text.split(4)):
            optimiser.param_groups[0]["lr"] = lr * min(1, (step + 1) / rate.WARM)
            last.append(excess_of(student, batch, settings, 4, train=steps))
            if steps:
                torch.nn.utils.clip_grad_norm_(student.trainable().values(), 1.0)
                optimiser.step()
                student.hf.zero_grad()
        student.load(weights)
        return sum(last[-rate.JUDGED :]) / rate.JUDGED

    assert found in RATES
    allowed = judged(0, False) + rate.RAISED * 0.02
    assert judged(found, True) <= allowed + 1e-6
    if found != RATES[0]:
        assert judged(RATES[RATES.index(found) - 1], True) > allowed - 1e-6


def test_a_batch_that_is_bad_from_the_start_is_not_held_against_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("gpt2")
    settings = replace(Settings(), distill=True, match=0.9, batch=4)
    student = Student(model, settings)
    text = torch.randint(model.vocabulary, (STEPS * 4, 16), generator=torch.Generator().manual_seed(0))
    student.install_gates(settings, lambda: text[:4], 0.02)
    found = find_rate(student, text, settings, margin=0.02, part=4)

    def worse(student: Student, batch: torch.Tensor, *arguments: Any, **options: Any) -> float:
        return excess_of(student, batch, *arguments, **options) + 5 * torch.equal(batch, text[20:24])

    monkeypatch.setattr(rate, "excess_of", worse)
    assert find_rate(student, text, settings, margin=0.02, part=4) == found
    assert found > RATES[-1]
