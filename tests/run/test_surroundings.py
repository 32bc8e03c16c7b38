"""Calls inside of what acts upon every torch operation, or decides where tensors are made."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

import jitney
from tests.equal import assert_equal

aten = torch.ops.aten


class DoubledSines(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is aten.sin.default else result


class ProductsForSums(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sums = (torch.add, torch.Tensor.add, torch.Tensor.__add__)
        return (torch.mul if func in sums else func)(*args, **(kwargs or {}))


def sines(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) @ w


def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("calls_before", [0, 1, 4])
def test_a_dispatch_mode_sees_every_operation(calls_before: int) -> None:
    compiled, (x, w) = jitney.compile(sines), given()
    for _ in range(calls_before):
        compiled(x, w)
    with DoubledSines():
        assert_equal(compiled(x, w), sines(x, w))
    with FlopCounterMode(display=False) as flops:
        compiled(x, w)
    assert flops.get_total_flops() == 2 * 3 * 4 * 4
    assert_equal(compiled(x, w), sines(x, w))


def test_make_fx_traces_what_was_compiled() -> None:
    compiled, (x, w) = jitney.compile(sines), given()
    compiled(x, w)
    traced = make_fx(compiled)(x, w)
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [
        aten.sin.default,
        aten.add.Tensor,
        aten.mm.default,
    ]
    assert_equal(traced(x * 2, w), sines(x * 2, w))


def _keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = op is aten.mm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(torch.sin(x @ w), 0).cos() @ w


def test_selective_checkpoints_leave_what_is_compiled_alone() -> None:
    compiled, contexts = (
        jitney.compile(_products),
        partial(create_selective_checkpoint_contexts, _keep_products),
    )
    for _ in range(4):
        gradients = []
        for function in (compiled, _products):
            x, w = given()
            y = checkpoint(function, x, w, use_reentrant=False, context_fn=contexts)
            gradients.append(torch.autograd.grad(y.sum(), (x, w)))
        assert_equal(*gradients)


def test_a_call_where_torch_functions_are_disabled() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.mul(x, 2, out=torch.empty(3))

    compiled, x = jitney.compile(noisy), torch.ones(3)
    for _ in range(3):
        results = []
        with torch._C.DisableTorchFunction():
            for function in (compiled, noisy):
                torch.manual_seed(0)
                results.append(function(x))
        assert_equal(*results)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", ["conjugate", "negative", "zeros"])
def test_tensors_that_are_not_what_lies_in_memory(kind: str, dynamic: bool | None) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ones(3) + x.sum(), x * 2, x @ torch.ones(x.shape[1], 2, dtype=x.dtype)

    def make(rows: int) -> torch.Tensor:
        torch.manual_seed(rows)
        x = torch.randn(rows, 4, dtype=torch.complex64).conj()
        zeros = torch._efficientzerotensor((rows, 4))
        return {"conjugate": x, "negative": x.imag, "zeros": zeros}[kind]

    compiled = jitney.compile(function, dynamic=dynamic)
    compiled(torch.randn(3, 4))
    for rows in (3, 5, 3, 6, 5):
        assert_equal(compiled(make(rows)), function(make(rows)))


def test_dropout_of_nothing() -> None:
    compiled = jitney.compile(lambda x: (F.dropout(x, 0.5), torch.native_dropout(x, 0.5, True)[1]))
    for _ in range(3):
        x = torch.randn(0, 4, requires_grad=True)
        y, mask = compiled(x)
        assert_equal(y, F.dropout(x, 0.5))
        assert mask.dtype is torch.native_dropout(x, 0.5, True)[1].dtype
        assert torch.autograd.grad(y.sum(), x)[0].shape == (0, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_of_all_draws_nothing(dynamic: bool) -> None:
    compiled = jitney.compile(lambda x: F.dropout(x * 2, 1.0), dynamic=dynamic)
    before = torch.get_rng_state()
    for rows in (3, 5):
        x = torch.tensor([1, torch.inf, -1] * rows, requires_grad=True)
        assert_equal(compiled(x), F.dropout(x * 2, 1.0))
    assert torch.equal(torch.get_rng_state(), before)


FUNCTIONS = {
    "empty results": lambda x: (x[:0].clone(), x[:0] * 2, x[:0].mT.contiguous()),
    "a constant": lambda x: torch.linspace(0, 1, 5, device="cpu") + x[0, 0],
    "dropout": lambda x: F.dropout(x, 0.5),
    "interpolation": lambda x: F.interpolate(x[None, None], size=(7, 9)),
    "a division": lambda x: x / 3,
    "an extern call": lambda x: x.sort(0)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_default_device_is_not_for_tensors_of_ours(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(8, 8)
    compiled = jitney.compile(function)
    with torch.device("meta"):
        for _ in range(3):
            torch.manual_seed(0)
            given = compiled(x)
            torch.manual_seed(0)
            assert_equal(given, function(x))


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_a_function_mode_sees_every_call(backend: str) -> None:
    def inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with ProductsForSums():
            y = sines(x, w) + x
        return y + 1

    x, w = given()
    for f in (sines, inside):
        compiled = jitney.compile(f, backend=backend)
        for surroundings in (ProductsForSums, nullcontext, ProductsForSums):
            with surroundings():
                expected, result = f(x, w), compiled(x, w)
            assert_equal(result, expected)
