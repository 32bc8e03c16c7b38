"""An author's op may draw, count or read what changes: each call of the program's is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log

CALLS: list[int] = []


@torch.library.custom_op("test_authors_ops::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    CALLS.append(len(CALLS))
    return x + torch.rand(3)


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


noise.register_autograd(lambda ctx, grad: noise(grad))


@torch.library.custom_op("test_authors_ops::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


halved.register_autograd(lambda ctx, grad: grad * ctx.forgotten)


def subtracted(x: Tensor) -> Tensor:
    return noise(x) - noise(x)


def unread(x: Tensor) -> Tensor:
    noise(x)
    return x + noise(x).sin() + torch.rand(3)


def between_draws(x: Tensor) -> Tensor:
    return torch.rand(3) + noise(x) * torch.rand(3) + noise(x + 1)


def of_constants(x: Tensor) -> Tensor:
    return x * noise(torch.ones(3))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("function", [subtracted, unread, between_draws, of_constants])
def test_each_call_is_made(function: Callable[[Tensor], Tensor], trains: bool) -> None:
    found = []
    for called in (function, jitney.compile(function, fullgraph=True)):
        CALLS.clear()
        torch.manual_seed(0)
        x = torch.zeros(3, requires_grad=trains)
        results = [called(x) for _ in range(2)]
        if trains:
            sum(results).sum().backward()
        found.append((results, x.grad, torch.rand(2), len(CALLS)))
    (*got, calls), (*right, expected) = found
    torch.testing.assert_close(got, right)
    assert calls == expected


def test_an_error_of_a_gradient_formula_is_the_programs() -> None:
    """It is eager's, raised in the backward pass; no bug of ours is told."""

    def f(x: Tensor) -> Tensor:
        return halved(x.exp()).sum()

    log.clear()
    compiled = jitney.compile(f, options={"eager_on_bug": False})
    x = torch.ones(3, requires_grad=True)
    loss = compiled(x)
    torch.testing.assert_close(loss, f(x))
    with pytest.raises(AttributeError, match="forgotten"):
        loss.backward()
    (told,) = log.events("eager_graph")
    assert "forgotten" in told.data["reason"]
