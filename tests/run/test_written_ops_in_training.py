"""Authors' ops that write to their arguments, beside gradients and in custom ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.capture.run_capture import assert_same
from tests.run.test_written_ops import OPS, both, is_whole, scale


def test_a_training_step_with_such_ops() -> None:
    """On what needs no gradient, beside what does."""

    def function(x: Tensor, w: Tensor, seen: Tensor) -> Tensor:
        hidden = (x @ w).relu()
        both(seen, hidden)
        out = torch.empty_like(x)
        OPS.fill(x, out=out)
        return (hidden * seen + out * w).sum()

    log.clear()
    compiled, found = jitney.compile(function), []
    x, w, seen = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    for called in (function, compiled):
        weight, noted = w.clone().requires_grad_(), seen.clone()
        for _ in range(3):
            result = called(x, weight, noted)
            result.backward()
        found.append((result, weight.grad, noted))
    assert_same(found[1], found[0])
    assert is_whole()


def test_a_tensor_saved_for_the_backward_pass_is_written_to() -> None:
    def function(w: Tensor, seen: Tensor) -> Tensor:
        made = (w * seen).sum()
        both(seen, seen)
        return made

    for called in (function, jitney.compile(function)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            called(torch.randn(3, requires_grad=True), torch.ones(3)).backward()


class Product(torch.autograd.Function):
    """Its passes fill memory of their own by ops that write."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        total, made = torch.empty_like(x), torch.zeros_like(x)
        OPS.fill(x, out=total)
        both(made, y, total)
        made.add_(x * y)
        ctx.save_for_backward(x, y)
        return made + total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        made = torch.empty_like(grad)
        OPS.fill(grad, out=made)
        scale(made, grad)
        return grad * y + made, grad * x


BUFFER = torch.ones(4, 4)


class Noting(torch.autograd.Function):
    """Writes to what others hold."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        both(BUFFER, x)
        return x * BUFFER

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        both(BUFFER, grad)
        return grad * BUFFER


def test_custom_gradients_whose_passes_fill_memory_of_their_own() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (Product.apply(x * 2, y) * y).relu() + Product.apply(y.sin(), x)

    log.clear()
    compiled = jitney.compile(function)
    for size in (4, 4, 6):
        found = []
        for called in (function, compiled):
            torch.manual_seed(size)
            inputs = [torch.randn(size, 3, requires_grad=True) for _ in range(2)]
            result = called(*inputs)
            result.square().sum().backward()
            found.append((result, [x.grad for x in inputs]))
        assert_same(found[1], found[0])
    assert is_whole()


def test_custom_gradients_whose_passes_write_to_what_others_hold() -> None:
    def function(x: Tensor) -> Tensor:
        return Noting.apply(x) * 2

    compiled, found = jitney.compile(function), []
    for called in (function, compiled):
        BUFFER.fill_(1)
        x = torch.linspace(0, 1, 16).view(4, 4).requires_grad_()
        for _ in range(2):
            result = called(x)
            between = BUFFER.clone()
            result.sum().backward()
        found.append((result, x.grad, between, BUFFER.clone()))
    assert_same(found[1], found[0])
