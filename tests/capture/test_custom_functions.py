"""What a custom function says of its results is what eager makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import assert_same


class Larger(torch.autograd.Function):
    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a * b, torch.where(a > b, a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return gradient * b, gradient * a


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> Any:
        turned = a.t()
        ctx.mark_non_differentiable(turned)
        return a * a, turned

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
        return gradient * 2


class Grown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> Any:
        ctx.mark_dirty(a)
        return a.mul_(1.5)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * 1.5


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        made = a * b
        return made, made

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor, other: torch.Tensor) -> Any:
        return one * 2, other * 3


def written(x: torch.Tensor, y: torch.Tensor) -> Any:
    product, larger = Larger.apply(x, y)
    larger.add_(0.5)  # nothing that the backward reads
    return product, larger


def turned(x: torch.Tensor, y: torch.Tensor) -> Any:
    squared, view = Turned.apply(x * y)
    return squared, view.requires_grad, view


def grown(x: torch.Tensor, y: torch.Tensor) -> Any:
    product = x * y
    with torch.no_grad():
        result = Grown.apply(product)
    return x * 2, result, product.requires_grad


def twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    one, other = Twice.apply(x, x * y)
    return one + other, one, other


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("function", [written, turned, grown, twice])
def test_results_and_gradients_are_eagers(function: Any, backend: str) -> None:
    found = []
    for run in (function, jitney.compile(function, backend=backend)):
        x = torch.linspace(0.1, 1, 9).view(3, 3).requires_grad_()
        results = run(x, torch.linspace(1, 0.2, 9).view(3, 3))
        results[0].sum().backward()
        found.append((results, x.grad))
    assert_same(found[1], found[0])


class Generous(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, mode: str) -> torch.Tensor:
        ctx.extra = {"two": (), "four": (None, None), "more": (a,)}[mode]
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * 2, None, *ctx.extra


@pytest.mark.parametrize("mode", ["two", "four", "more"])
def test_gradients_for_more_than_the_inputs(mode: str) -> None:
    compiled, given = jitney.compile(Generous.apply, backend="eager"), []
    for run in (Generous.apply, compiled):
        x = torch.ones(3, requires_grad=True)
        try:
            given.append(torch.autograd.grad(run(x, mode).sum(), x)[0])
        except RuntimeError as error:
            given.append(str(error))
    assert_same(given[1], given[0])


KEPT = torch.zeros(2, 2)


class Scratch(torch.autograd.Function):
    """Writes to what it has made, through a view, before and after it keeps a part of it."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        made, kept = torch.empty_like(a), a.exp()
        made.copy_(a).mul_(3)
        made[0].view(-1).add_(a[0])
        ctx.save_for_backward(kept, made)
        kept.mul_(2)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        kept, made = ctx.saved_tensors
        gradient = gradient.clone()
        gradient.mul_(kept).sub_(made)
        return gradient


class Notes(torch.autograd.Function):
    """Writes to a tensor from outside, through a view."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        KEPT[0].add_(a[0])
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Doubles(torch.autograd.Function):
    """Writes to its input, through a view."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        a.detach()[0].mul_(2)
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@pytest.mark.parametrize("function", [Scratch, Notes, Doubles])
def test_a_function_that_writes(function: Any) -> None:
    """What it has made itself is not seen from outside."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        z = function.apply(y)
        return z.sin(), y + 1

    seen = []
    for call in (f, jitney.compile(f, fullgraph=function is Scratch)):
        KEPT.zero_()
        x = torch.tensor([[0.5, -1.0], [2.0, 3.0]], requires_grad=True)
        results = call(x)
        (results[0].sum() + 3 * results[1].sum()).backward()
        seen.append([*(r.detach() for r in results), x.grad, KEPT.clone()])
    torch.testing.assert_close(seen[1], seen[0])
