"""Training steps compiled whole: torch's optimizers are captured and update as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


def trained(
    compile_step: Callable[[Any], Any], model: torch.nn.Module, name: str
) -> list[torch.Tensor]:
    """The parameters after five steps, then the losses."""
    model = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    inputs = torch.linspace(-1, 1, 32).reshape(4, 8)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile_step(step)
    losses = [step() for _ in range(5)]
    return [*(p.detach() for p in model.parameters()), *losses]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(*layers)
    eager = trained(lambda step: step, model, name)
    compiled = trained(jitney.compile, model, name)
    torch.testing.assert_close(compiled, eager, rtol=2e-5, atol=2e-6)


def test_scale_given_as_a_tensor_is_not_read() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        changed = x.clone()
        changed.addcdiv_(x, y, value=-y.sum())
        return changed, torch.addcmul(x, y, y, value=y.mean())

    x, y = torch.rand(6) + 1, torch.rand(6) + 1
    expected = f(x, y)
    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(x, y), expected)


def test_power_operator_reaches_other_backends() -> None:
    compiled = jitney.compile(lambda x: (x**2, 2.0**x), backend="eager", fullgraph=True)
    x = torch.tensor([1.0, 3.0])
    torch.testing.assert_close(compiled(x), (x**2, 2.0**x))


def test_profiler_labels_do_not_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("label"):
            return x.sin() + 1

    x = torch.randn(3)
    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(x), f(x))


def test_an_error_behind_a_break_leaves_a_profiler_label() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("label"):
            y = x.sin()
            jitney.graph_break()
            return y @ torch.ones(4)

    with pytest.raises(RuntimeError, match="size"):
        jitney.compile(f)(torch.randn(3))
