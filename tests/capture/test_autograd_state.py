"""A custom backward reads Python state when it runs, not when its forward was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

NUMBERS = {"scale": 3.0}


class OfAttribute(torch.autograd.Function):
    scale = 5.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * OfAttribute.scale


class OfGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * NUMBERS["scale"]


@pytest.mark.parametrize("function", [OfAttribute, OfGlobal])
def test_state_changed_before_backward(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        with monkeypatch.context() as patch:
            result = call(x)
            patch.setattr(OfAttribute, "scale", 7.0)
            patch.setitem(NUMBERS, "scale", 9.0)
            result.sum().backward()
        assert x.grad is not None
        return x.grad

    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x).sin() + function.apply(x)

    torch.testing.assert_close(gradient(jitney.compile(f)), gradient(f))
