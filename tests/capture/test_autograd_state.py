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


class OfBoth(torch.autograd.Function):
    """Its forward reads what its backward reads, through a module's global and a class."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, power: int) -> tuple[torch.Tensor, None]:
        ctx.save_for_backward(x)
        ctx.power, ctx.more = power, [x * 2, power]
        return x * NUMBERS["scale"] * OfAttribute.scale * LIMIT, None

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, none: None) -> Any:
        (x,) = ctx.saved_tensors
        slope = NUMBERS["scale"] * OfAttribute.scale * LIMIT * x**ctx.power * ctx.more[0]
        return gradient * slope, None


LIMIT = 2


def apply(function: Any, x: torch.Tensor) -> torch.Tensor:
    return function.apply(x, 3)[0] if function is OfBoth else function.apply(x)


@pytest.mark.parametrize("changed", [(), ("scale",), ("NUMBERS",), ("LIMIT",)])
@pytest.mark.parametrize("function", [OfAttribute, OfGlobal, OfBoth])
def test_state_changed_before_backward(
    function: Any, changed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        found = []
        for _ in range(2):
            x = torch.tensor([1.0, 2.0, -1.0], requires_grad=True)
            with monkeypatch.context() as patch:
                result = call(x)
                if "scale" in changed:
                    patch.setattr(OfAttribute, "scale", 7.0)
                if "NUMBERS" in changed:
                    patch.setitem(NUMBERS, "scale", 9.0)
                if "LIMIT" in changed:
                    patch.setitem(globals(), "LIMIT", 3)
                result.sum().backward()
            found.append(x.grad)
        return found

    def f(x: torch.Tensor) -> torch.Tensor:
        return apply(function, x * 2).sin() + apply(function, x)

    compiled = jitney.compile(f, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(f))


@pytest.mark.parametrize("function", [OfAttribute, OfGlobal, OfBoth])
def test_gradients_of_authors_are_differentiated_again(function: Any) -> None:
    def curvature(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.tensor([1.0, 2.0, -1.0], requires_grad=True)
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(slope.square().sum(), x)
        return found

    def f(x: torch.Tensor) -> torch.Tensor:
        return apply(function, x.sin() * x)

    compiled = jitney.compile(f, fullgraph=True)
    torch.testing.assert_close(curvature(compiled), curvature(f))


class Owner:
    scale = 2.0


class OfObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, owner: Owner) -> torch.Tensor:
        ctx.owner = owner
        return x * owner.scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.owner.scale, None


class OfList(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scales: list[float]) -> torch.Tensor:
        ctx.scales = scales
        return x * scales[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.scales[0], None


def test_objects_kept_on_ctx_may_change_before_backward() -> None:
    def gradients(wrap: Callable[[Any], Any]) -> Any:
        x, owner, scales = torch.ones(3, requires_grad=True), Owner(), [3.0]

        def f(x: torch.Tensor, owner: Owner, scales: list[float]) -> torch.Tensor:
            return OfObject.apply(x, owner) + OfList.apply(x, scales)

        result = wrap(f)(x, owner, scales)
        owner.scale, scales[0] = 5.0, 7.0
        result.sum().backward()
        return x.grad

    torch.testing.assert_close(gradients(jitney.compile), gradients(lambda f: f))


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
