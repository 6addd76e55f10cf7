from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.attention.function import Sampling, probing
from gossamer.training.objective import distance, objective, sampling
from gossamer.training.settings import TEMPERATURE, Settings
from gossamer.training.student import Student
from tests.conftest import wrapped


def student_of(family: str, settings: Settings) -> Student:
    """Away from its base, as if some steps had been taken."""
    student = Student(wrapped(family, torch.float64), settings)
    student.install_gates(replace(settings, bias=0.5))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in student.trainable().values():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return student


def states_of(hf: nn.Module, layers: list[nn.Module], ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and what each layer gave, seen from outside; the last one after the model's final norm."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for layer in layers
    ]
    logits = hf(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits, seen


@pytest.mark.parametrize("distill", [True, False])
def test_it_is_what_it_says(family: str, distill: bool) -> None:
    settings = Settings(distill=distill, match=0.8, train="all")
    student = student_of(family, settings)
    ids = torch.randint(student.model.vocabulary, (3, 9), generator=torch.Generator().manual_seed(0))
    outcome = objective(student, ids, settings, Sampling(None))
    outcome.loss.backward()
    names = student.trainable()
    got = {name: weight.grad.clone() for name, weight in names.items() if weight.grad is not None}
    student.hf.zero_grad()

    def layers(hf: nn.Module) -> list[nn.Module]:
        modules = {module: name for name, module in student.model.hf.named_modules()}
        return [hf.get_submodule(modules[layer.module]) for layer in student.model.layers]

    with probing(Sampling(None)):
        logits, states = states_of(student.hf, layers(student.hf), ids)
    with torch.no_grad():
        base_logits, base_states = states_of(student.model.hf, layers(student.model.hf), ids)
    for some, hf in ((states, student.hf), (base_states, student.model.hf)):
        some[-1] = final_norm(hf)(some[-1])
    log_p, log_q = (x[:, :-1].flatten(0, 1).log_softmax(-1) for x in (logits, base_logits))
    kl = F.kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    ce = F.nll_loss(log_p, ids[:, 1:].flatten())
    total = torch.zeros((), dtype=torch.float64)
    for mine, its in zip(states, base_states, strict=True):
        for sample in range(3):
            for position in range(9):
                a, b = mine[sample, position], its[sample, position]
                total = total + (a - b) @ (a - b) / (b @ b) / (3 * 9 * len(states))
    expected = 0.2 * (kl if distill else ce) + 0.8 * total
    torch.testing.assert_close(outcome.loss, expected, atol=1e-5, rtol=1e-5)
    expected.backward()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, names[name].grad, atol=1e-5, rtol=1e-4)


def final_norm(hf: nn.Module) -> nn.Module:
    (name,) = (n for n, _ in hf.named_modules() if n in ("transformer.ln_f", "gpt_neox.final_layer_norm", "model.norm"))
    return hf.get_submodule(name)


def test_a_state_of_zeros_has_no_size_to_divide_by() -> None:
    mine = torch.ones(1, 2, 4, requires_grad=True)
    its = torch.stack([torch.zeros(4), torch.full((4,), 2.0)])[None]
    found = distance([mine], [its])
    found.backward()
    assert found.item() == pytest.approx((4 + 4 / 16) / 2)
    assert mine.grad is not None
    assert mine.grad.isfinite().all()


def test_the_base_model_runs_only_where_it_is_needed() -> None:
    settings = Settings(distill=False, match=0.0)
    student = student_of("gpt2", settings)
    ids = torch.zeros(1, 5, dtype=torch.long)
    assert objective(student, ids, settings, None).base_hidden is None
    assert objective(student, ids, settings, None, compare=True).base_hidden is not None
    assert objective(student, ids, replace(settings, match=1.0), None).base_hidden is not None


@pytest.mark.parametrize(("predict", "tokens"), [(4, 255), (4, 2), (1, 7), (None, 7)])
def test_every_prediction_has_its_turn(predict: int | None, tokens: int) -> None:
    settings = Settings(predict=predict)
    turns = min(predict or 1, tokens)
    seen = [place for step in range(turns) for place in range(tokens)[settings.predicted(step, tokens)]]
    assert sorted(seen) == list(range(tokens))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (None, TEMPERATURE)),
        ({"noise": 1.0}, (7, 1.0)),
        ({"noise": 0.5, "temperature": 0.25}, (7, 0.25)),
        ({"temperature": 1.0}, (None, 1.0)),
    ],
)
def test_drawn_gates_are_the_published_ones(options: dict[str, float], expected: tuple[int | None, float]) -> None:
    gates = sampling(Settings(**options), 7, 3)  # type: ignore[arg-type]
    assert gates is not None
    assert ((gates.seed, gates.temperature), gates.first) == (expected, 3)
    assert sampling(Settings(penalty=False), 7) is None
