"""Ops on lists of tensors, which optimizers call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_autograd_counts_their_writes(backend: str) -> None:
    def step(parameters: Any, gradients: Any) -> torch.Tensor:
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.5)
            torch._foreach_mul_(parameters, 0.5)
        return parameters[0] * 2

    compiled, w = jitney.compile(step, backend=backend), torch.nn.Parameter(torch.ones(3))
    for _ in range(2):
        loss = (w * w).sin().sum()
        before = w._version
        compiled([w], [torch.ones(3)])
        assert w._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def before_a_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    turned = x.t()
    torch._foreach_mul_([x], [y])
    return turned * 2


def before_a_power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, x = x[0], x * y
    row = x[1:]
    torch._foreach_exp_([x])
    return row * first


@pytest.mark.parametrize("function", [before_a_product, before_a_power])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_taken_before_a_write_has_its_gradients(function: Any, dynamic: bool | None) -> None:
    found = []
    for call in (function, jitney.compile(function, dynamic=dynamic)):
        x, y = (torch.tensor([[1.0, 2.0], [0.5, n]], requires_grad=True) for n in (3.0, -1.0))
        call(x * 1, y * 1).sum().backward()
        found.append((x.grad, y.grad))
    for mine, right in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, right)
