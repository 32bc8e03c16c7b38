"""What torch.compile made inside of a program is compiled with it; torch's capture stays out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitney

by_torch = functools.partial(torch.compile, backend="eager")


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() * 2


class Decorated(nn.Module):
    @by_torch
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() * 2


class Helped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = by_torch(self._step)

    def _step(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x) * 2


def with_forward(compiler: Callable[..., Any]) -> nn.Module:
    module: Any = Layer()
    module.forward = compiler(module.forward)
    return module


PROGRAMS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "forward": lambda: with_forward(by_torch),
    "our forward": lambda: with_forward(jitney.compile),
    "a submodule's forward": lambda: nn.Sequential(with_forward(by_torch)),
    "a class's forward": Decorated,
    "a submodule's class's forward": lambda: nn.Sequential(Decorated()),
    "a method": Helped,
    "a wrapper's forward": lambda: by_torch(Layer()).forward,
    "a wrapper's forward, called": lambda: functools.partial(by_torch(Layer()).forward),
    "a bound method": lambda: by_torch(Layer().forward),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_we_compile(name: str) -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = jitney.compile(PROGRAMS[name](), fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), x.relu() * 2)
    assert counters["frames"]["total"] == 0
