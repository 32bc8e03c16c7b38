"""Backward passes of custom functions that raise, or draw, whatever gradient they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

import jitney
from jitney.backends import jitney_backend


class Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, at)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        x, at = ctx.saved_tensors
        return given * x[at], None


class Factored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(sign)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        (sign,) = ctx.saved_tensors
        return given @ torch.linalg.cholesky(torch.eye(3) * sign), None


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        dropped = torch.nn.functional.dropout(given, 0.5)
        return dropped + torch.rand_like(ctx.saved_tensors[0]) * given


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": lambda f: jitney.compile(f, options={"eager_on_bug": False}),
    "dynamic": lambda f: jitney.compile(f, dynamic=True, options={"eager_on_bug": False}),
    "torch": lambda f: torch.compile(f, backend=jitney_backend),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (Picked, torch.tensor([0, 2, 1]), torch.tensor([0, 1, 9])),
        (Factored, torch.tensor(2.0), torch.tensor(-1.0)),
    ],
)
def test_errors_are_raised_in_the_backward_pass(
    function: Any, good: torch.Tensor, bad: torch.Tensor, way: str
) -> None:
    def f(x: torch.Tensor, other: torch.Tensor) -> Any:
        return function.apply(x, other), x.exp()

    def gradient(call: Any, other: torch.Tensor, part: int) -> Any:
        x = torch.eye(3).requires_grad_()
        loss = call(x, other)[part].sum()
        loss.backward()
        return x.grad

    jitney.reset()
    compiled = WAYS[way](f)
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled, good, 0), gradient(f, good, 0))
        for call in (f, compiled):
            with pytest.raises((IndexError, RuntimeError)):
                gradient(call, bad, 0)
        torch.testing.assert_close(gradient(compiled, bad, 1), gradient(f, bad, 1))


@pytest.mark.parametrize("way", WAYS)
def test_numbers_are_drawn_in_the_backward_pass(way: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return Noisy.apply(x), x.exp()

    def drawn(call: Any) -> list[Any]:
        x = torch.ones(5, requires_grad=True)
        found: list[Any] = []
        for part in (0, 1):
            torch.manual_seed(0)
            result = call(x)[part].sum()
            found.append(torch.rand(2))
            torch.manual_seed(1)
            found += [torch.autograd.grad(result, x, retain_graph=True)[0] for _ in range(2)]
            found.append(torch.rand(2))
        return found

    jitney.reset()
    torch.testing.assert_close(drawn(WAYS[way](f)), drawn(f))


class Kept(torch.autograd.Function):
    """A part of its gradient needs nothing but what is saved: the forward pass can compute it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return given * 2 + 0 * ctx.saved_tensors[0]


@pytest.mark.parametrize("way", WAYS)
def test_saved_tensors_stay_where_nothing_reaches_their_function(way: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return Kept.apply(z * x), Kept.apply(y * y)

    def gradients(call: Any) -> list[Any]:
        y, z = torch.tensor(3.0, requires_grad=True), torch.ones(3, 3, requires_grad=True)
        results = call(torch.tensor(2.0), y, z)
        return [
            torch.autograd.grad(result.sum(), (y, z), retain_graph=True, allow_unused=True)
            for result in results
        ]

    jitney.reset()
    compiled = WAYS[way](f)
    torch.testing.assert_close(gradients(compiled), gradients(f))


class Modal(torch.autograd.Function):
    """Its backward does what the modes of its own time say."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        (w,) = ctx.saved_tensors
        factor = 1 if torch.get_default_dtype() is torch.float32 else 3
        return given @ w * factor, None


@pytest.mark.parametrize("way", ["compile", "dynamic"])  # "torch": Dynamo decides the branch
@pytest.mark.parametrize("again", [False, True])
def test_a_custom_backward_runs_in_the_modes_of_its_own_time(way: str, again: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return Modal.apply(x.sin(), w), x.cos()

    def gradients(call: Any) -> list[Any]:
        torch.manual_seed(0)
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
        found: list[Any] = []
        for scope in (nullcontext(), torch.autocast("cpu", torch.bfloat16), float64_by_default()):
            if again:
                call(x, w)
            result = call(x, w)
            with scope:
                found += torch.autograd.grad([r.sum() for r in result], x)
        with torch.autocast("cpu", torch.bfloat16):  # the forward's modes are not the backward's
            result = call(x, w)
        return [*found, *torch.autograd.grad([r.sum() for r in result], x)]

    jitney.reset()
    torch.testing.assert_close(gradients(WAYS[way](f)), gradients(f), rtol=0, atol=1e-6)


@torch.library.custom_op("jitney_tests::times", mutates_args=())
def times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


times.register_fake(lambda x, w: x @ w)
times.register_autograd(
    lambda ctx, given: (given @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ given),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", [times, lambda x, w: Modal.apply(x, w)], ids=["op", "function"])
def test_autocast_of_the_backward_pass_is_seen(call: Any, way: str) -> None:
    def gradients(f: Any) -> Any:
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        result = f(x, w)
        with torch.autocast("cpu", torch.bfloat16):
            return torch.autograd.grad(result.pow(2).sum(), x)

    jitney.reset()
    torch._dynamo.reset()
    compiled = WAYS[way](lambda x, w: call(x, w))
    torch.testing.assert_close(gradients(compiled), gradients(call), rtol=0, atol=1e-6)


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
