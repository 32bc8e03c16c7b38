"""What the program marks to run eager runs eager, wherever the mark is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitney
from jitney.errors import Unsupported

ONES = torch.ones(2)


def told(x: Tensor) -> Tensor:
    return x * (2.0 if torch.compiler.is_compiling() else 3.0)


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return told(x)


class Marked(nn.Module):
    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return told(x)


class MarkedByUs(nn.Module):
    @jitney.disable
    def forward(self, x: Tensor) -> Tensor:
        return told(x)


@torch.compiler.disable
class MarkedClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return told(x)


def marked_on_the_instance() -> nn.Module:
    module: Any = Plain()
    module.forward = torch.compiler.disable(module.forward)
    return module


MODULES: list[Callable[[], nn.Module]] = [
    lambda: torch.compiler.disable(Plain(), reason="numerics"),
    lambda: torch._dynamo.disable(Plain()),
    lambda: jitney.disable(Plain()),
    Marked,
    MarkedByUs,
    MarkedClass,
    marked_on_the_instance,
]


@pytest.mark.parametrize("make", MODULES)
def test_a_marked_module_in_a_model_runs_eager(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.ReLU(), make(), nn.ReLU())
    assert torch.equal(jitney.compile(model)(ONES), ONES * 3)
    with pytest.raises(Unsupported, match="marked to run eager"):
        jitney.compile(model, fullgraph=True)(ONES)


@pytest.mark.parametrize("make", MODULES[3:])
def test_a_compiled_module_with_a_marked_forward_runs_eager(make: Callable[[], nn.Module]) -> None:
    assert torch.equal(jitney.compile(make())(ONES), ONES * 3)
    with pytest.raises(Unsupported, match="marked to run eager"):
        jitney.compile(make(), fullgraph=True)(ONES)


@pytest.mark.parametrize("make", [Marked, MarkedByUs, marked_on_the_instance])
def test_a_marked_forward_of_a_compiled_module_runs_eager(make: Callable[[], nn.Module]) -> None:
    assert torch.equal(jitney.compile(make()).forward(ONES), ONES * 3)


def test_a_compiled_method_that_is_marked_runs_eager() -> None:
    assert torch.equal(jitney.compile(Marked().forward)(ONES), ONES * 3)


def test_a_marked_function_that_is_compiled_by_name_is_compiled() -> None:
    assert torch.equal(jitney.compile(torch.compiler.disable(told))(ONES), ONES * 2)
