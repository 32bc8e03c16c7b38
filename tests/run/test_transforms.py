"""Compiled functions inside functorch transforms, forward-mode differentiation and vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import jitney
from tests.equal import assert_equal

Call = Callable[[torch.Tensor], torch.Tensor]


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.flip(-1)).cumsum(-1)


def tangent(call: Call, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(x, x.cos()))).tangent


def many_gradients(call: Call, x: torch.Tensor) -> Any:
    x = x[0].clone().requires_grad_()
    return torch.autograd.grad(call(x), x, torch.eye(3), is_grads_batched=True)


TRANSFORMS: dict[str, Callable[[Call, torch.Tensor], Any]] = {
    "vmap": lambda call, x: torch.func.vmap(call)(x),
    "vmap of another axis": lambda call, x: torch.func.vmap(call, in_dims=1)(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x.cos(),)),
    "vjp": lambda call, x: torch.func.vjp(call, x)[1](x),
    "hessian": lambda call, x: torch.func.hessian(lambda v: call(v).sum())(x),
    "forward mode": tangent,
    "many gradients": many_gradients,
    "jacobian": lambda call, x: torch.autograd.functional.jacobian(call, x, vectorize=True),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_a_compiled_function(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    call = jitney.compile(f)
    for _ in range(2):  # compiled before and after
        found, wanted = (TRANSFORMS[name](c, x) for c in (call, f))
        assert_equal(found, wanted)
        for requires_grad in (False, True):
            given = x.clone().requires_grad_(requires_grad)
            assert_equal(call(given).detach(), f(given).detach())
