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


class Keeping(torch.autograd.Function):
    """Keeps its input, its result and one of its own on ``ctx``, as ``kept`` says."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: str) -> torch.Tensor:
        y = x.exp()
        ctx.tensor = {"input": x, "view": x.view(-1), "result": y, "own": x * 2}[kept]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.tensor, None


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kept", ["input", "view", "result", "own"])
def test_a_tensor_kept_on_ctx_is_read_as_backward_finds_it(kept: str, where: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        doubled = x * 2
        y = Keeping.apply(doubled, kept)
        total = y.sum()
        if where == "inside":
            with torch.no_grad():
                (y if kept == "result" else doubled).mul_(3)
        return total, doubled, y

    def gradient(call: Any) -> torch.Tensor:
        x = torch.ones(3, requires_grad=True)
        total, doubled, y = call(x)
        if where == "outside":
            with torch.no_grad():
                (y if kept == "result" else doubled).mul_(3)
        total.backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(jitney.compile(f)), gradient(f))


def test_what_only_the_function_holds_may_be_kept_on_ctx() -> None:
    x = torch.ones(3, requires_grad=True)
    jitney.compile(lambda x: Keeping.apply(x, "own").sum(), fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
