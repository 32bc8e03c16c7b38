"""What a compiled callable kept alive is gone with it, without a pass of Python's collector."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    jitney.compile(lambda x: x + 1)(torch.ones(2))  # imports leave cycles behind
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _model() -> torch.nn.Sequential:
    layers = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers)


def _train(compiled: Callable[..., Any], *arguments: Any) -> None:
    for rows in (2, 3, 4):
        compiled(*arguments, torch.randn(rows, 8)).sum().backward()


def _module(model: torch.nn.Module) -> None:
    _train(jitney.compile(model))


def _function(model: torch.nn.Module) -> None:
    _train(jitney.compile(lambda x: model(x)))


def _argument(model: torch.nn.Module) -> None:
    compiled = jitney.compile(lambda m, x: m(x))
    _train(compiled, model)
    _train(compiled, _model())


def _around_a_break(model: torch.nn.Module) -> None:
    def around(x: torch.Tensor) -> torch.Tensor:
        first = model(x)
        jitney.graph_break()
        return first * model[0](x)[:, :2]

    _train(jitney.compile(around))


def _step(model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())

    @jitney.compile
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step(torch.randn(4, 8))


def _copy(model: torch.nn.Module) -> None:
    _train(copy.deepcopy(jitney.compile(model)))


@pytest.mark.parametrize("use", [_module, _function, _argument, _around_a_break, _step, _copy])
def test_models_go_with_what_was_compiled(use: Callable[..., None]) -> None:
    model = _model()
    seen = weakref.ref(model), weakref.ref(model[0].weight)
    use(model)
    del model
    assert [reference() for reference in seen] == [None, None]


def test_what_was_kept_of_a_compiled_module_goes_on() -> None:
    model, x = _model(), torch.randn(4, 8)
    forward = jitney.compile(model).forward
    assert torch.equal(forward(x), forward(x))
    compiled = jitney.compile(model)
    compiled(x)
    forward = compiled.forward
    del compiled
    torch.testing.assert_close(forward(x), model(x))


def test_functions_of_one_decorator_do_not_end_each_other() -> None:
    counts = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        counts.append(len(inputs))
        return graph.forward

    decorate = jitney.compile(backend=backend)
    first, second = decorate(lambda x: x + 1), decorate(lambda x: x * 2)
    x = torch.ones(3)
    first(x), second(x)
    del first
    second(x)
    assert len(counts) == 2


def test_gradients_outlive_what_was_compiled() -> None:
    model, x = _model(), torch.randn(4, 8)
    loss = jitney.compile(lambda x: model(x).square().sum())(x)
    loss.backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    for mine, eager in zip(got, model.parameters()):
        torch.testing.assert_close(mine, eager.grad)
