"""Backends other than ours: what they are called with, and what may be made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_module_simplified

import jitney
from jitney.errors import CompilerBug
from jitney.region_pipeline import GraphCompiler
from tests.equal import assert_equal


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).relu() * x.shape[0]


def test_a_callable_is_given_the_calls_own_tensors() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        seen.extend(example_inputs)
        torch.rand(3)  # as torch's capture does, the compile leaves random numbers where they were
        return gm.forward

    model, x = Model(), torch.randn(3, 8)
    torch.manual_seed(1)
    jitney.compile(model, backend=backend)(x)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert_equal(drawn, torch.rand(1))
    held = {id(value) for value in (x, *model.parameters(), *model.buffers())}
    assert seen and all(id(value) in held for value in seen)


def test_a_backend_runs_the_graph_on_its_examples() -> None:
    model, x = Model().eval(), torch.randn(3, 8)
    traced = jitney.compile(
        model, backend=lambda gm, inputs: torch.jit.trace(gm, tuple(inputs)), dynamic=False
    )
    assert_equal(traced(x), model(x))
    with pytest.raises(ImportError, match="install apache-tvm|^No module named 'tvm'$"):
        jitney.compile(model, backend="tvm", dynamic=False)(x)


@pytest.mark.parametrize("eager_on_bug", [True, False])
def test_a_bug_of_ours_in_a_graph_of_torchs(
    monkeypatch: pytest.MonkeyPatch, eager_on_bug: bool
) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise CompilerBug("a bug")

    monkeypatch.setattr(GraphCompiler, "start", start)
    options = {"eager_on_bug": eager_on_bug}
    model, x = Model().eval(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="jitney", options=options)
    if eager_on_bug:
        with pytest.warns(UserWarning, match="runs eager: a bug"):
            assert_equal(compiled(x), model(x))
    else:
        with pytest.raises(Exception, match="a bug"):
            compiled(x)


def simplified(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    keep = lambda graph, _: graph.forward  # noqa: E731
    return aot_module_simplified(gm, example_inputs, fw_compiler=keep, bw_compiler=keep)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize(
    "backend", [simplified, aot_autograd(fw_compiler=lambda graph, _: graph), "aot_eager"]
)
def test_autograd_ahead_of_time(backend: Any, dynamic: bool | None) -> None:
    model, other = Model(), Model()
    compiled = jitney.compile(other, backend=backend, dynamic=dynamic, fullgraph=True)
    for size in (3, 5, 4):
        x = torch.randn(size, 8, requires_grad=True)
        found, expected = compiled(x), model(x)
        assert_equal(found, expected)
        inputs = (x, *model.parameters()), (x, *other.parameters())
        grads = [
            torch.autograd.grad(y.square().sum(), i) for y, i in zip((expected, found), inputs)
        ]
        assert_equal(*grads)
        assert_equal(list(other.buffers()), list(model.buffers()))


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return x + 1


def of_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[1:] * w


@pytest.mark.parametrize("program", [writes, of_a_view])
@pytest.mark.parametrize("dynamic", [True, False])
def test_inputs_that_are_written_to_or_views(program: Callable[..., Any], dynamic: bool) -> None:
    """What is written to by a tensor with gradients has no stand-in that looks as it did."""
    base, w = torch.ones(5, 3), torch.full((3,), 2.0, requires_grad=True)
    compiled = jitney.compile(program, backend=simplified, dynamic=dynamic)
    mine, eager = base.clone()[1:], base.clone()[1:]
    assert_equal(compiled(mine, w), program(eager, w))
    assert_equal(mine, eager)
    assert mine.requires_grad == eager.requires_grad
