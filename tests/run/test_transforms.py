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


def _differentiated(call: Call, x: torch.Tensor) -> Call:
    """What takes ``call(x)``'s gradient from a weight."""
    y = call(x)
    return lambda w: torch.autograd.grad(y, x, w, retain_graph=True, create_graph=True)[0]


def _dual(gradient: Call, w: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(gradient(forward_ad.make_dual(w, w.cos())))


OF_WEIGHTS: dict[str, Callable[[Call, torch.Tensor], Any]] = {
    "jvp": lambda gradient, w: torch.func.jvp(gradient, (w,), (w.cos(),)),
    "vjp": lambda gradient, w: torch.func.vjp(gradient, w)[1](w.cos()),
    "grad": lambda gradient, w: torch.func.grad(lambda v: gradient(v).sum())(w),
    "jacrev": lambda gradient, w: torch.func.jacrev(gradient)(w),
    "jacfwd": lambda gradient, w: torch.func.jacfwd(gradient)(w),
    "vmap": lambda gradient, w: torch.vmap(gradient)(w.diag()),
    "forward mode": _dual,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_transforms_of_the_gradient_of_a_compiled_function(name: str, dynamic: bool | None) -> None:
    x, w = torch.linspace(0.1, 0.5, 5).requires_grad_(), torch.linspace(1, 2, 5)
    found, wanted = (
        OF_WEIGHTS[name](_differentiated(call, x), w)
        for call in (jitney.compile(f, dynamic=dynamic), f)
    )
    assert_equal(found, wanted)


def test_many_gradients_of_random_numbers() -> None:
    def program(call: Call) -> Any:
        torch.manual_seed(0)
        x = torch.ones(4, requires_grad=True)
        y = call(x)
        return y, torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x)

    assert_equal(program(jitney.compile(drawn)), program(drawn))


def test_many_gradients_that_eager_cannot_give_raise() -> None:
    def written(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.mul_(x)
        return b.sin()

    x = torch.ones(3, requires_grad=True)
    y = jitney.compile(written)(x, x * 2)
    with pytest.raises(RuntimeError, match="many at a time"):
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, create_graph=True)
