"""Scatters with atomics: kernels of several programs whose positions collide, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.triton.interpreted import gpu_program, run_kernels
from tests.loops.lowered import GPU, externs, lower_for, trace

F = Callable[..., Any]


def check(fn: F, *args: torch.Tensor, **tolerance: float) -> None:
    program, constants = gpu_program(fn, *args)
    assert not externs(program)
    got = run_kernels(program, constants, tuple(a.clone() for a in args))
    torch.testing.assert_close(got[0], fn(*args), equal_nan=True, **tolerance)


def places(*shape: int, classes: int = 5) -> torch.Tensor:
    return torch.randint(0, classes, shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64,
                                   torch.int32, torch.int8, torch.uint8])  # fmt: skip
@pytest.mark.parametrize("reduce", ["sum", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    def f(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, at, src, reduce, include_self=include_self)

    x, src = (torch.randint(0, 9, s).to(dtype) for s in ((6, 7), (300, 7)))
    if dtype.is_floating_point and reduce != "sum":
        x[1, 1], src[4, 2], src[5] = -float("nan"), float("nan"), -1.5
        x[2], src[7] = -float("inf"), float("inf")
    check(f, x, places(300, 7), src)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_a_nan_has_no_sign(dtype: torch.dtype, reduce: str) -> None:
    """A sort of bits puts a negative one first."""
    x, src = torch.zeros(4, dtype=dtype), torch.tensor([1, float("nan"), 2]).to(dtype)
    at = torch.tensor([0, 1, 1])

    def f(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, at, src, reduce)

    program, constants = gpu_program(f, x, at, src)
    (got,) = run_kernels(program, constants, (x, at, src))
    assert got.isnan().tolist() == [False, True, False, False] and not got.signbit().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("include_self", [True, False])
def test_mean(dtype: torch.dtype, include_self: bool) -> None:
    def f(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return torch.index_reduce(x, 1, at, src, "mean", include_self=include_self)

    x, src = torch.randn(3, 6).to(dtype), torch.randn(3, 40).to(dtype)
    check(f, x, places(40), src, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("count", [4, 128, 300, 5000])
def test_each_of_many_equal_rows_is_added(count: int) -> None:
    """Neither place nor value depends on the row, nor need a mask: it is added ``count`` times."""

    def counted(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, at.expand(count), src.expand(count, 8))

    def joined(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        rows = torch.maximum(x.sum(0), src).expand(count, 8)
        return rows.index_put((at.expand(count),), rows, accumulate=True) + rows

    x, src = torch.randint(0, 9, (6, 8)).float(), torch.ones(8)
    at = torch.tensor([2])
    check(counted, x, at, src)
    check(joined, x, at, src)
    check(lambda x, at: x.index_add(0, at.expand(count), x.sum().expand(count)), x[0], at)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16, torch.uint8])
def test_sums(dtype: torch.dtype) -> None:
    x, src = torch.randint(0, 9, (6, 7)).to(dtype), torch.randint(0, 9, (400, 7)).to(dtype)
    at = places(400)
    check(lambda x, at, src: torch.index_add(x, 0, at, src), x, at, src)
    check(lambda x, at, src: x.index_put((at,), src, accumulate=True), x, at, src)
    check(lambda x, at, src: x.scatter_add(0, at.unsqueeze(1).expand(400, 7), src), x, at, src)


def test_the_gradient_of_an_embedding() -> None:
    def f(grad: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, at, 9, 3, False)

    check(f, torch.randn(200, 16), places(200, classes=9), rtol=1e-5, atol=1e-5)


def test_symbolic_extents() -> None:
    def f(x: torch.Tensor, at: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, at, src, "amax")

    traced = torch.zeros(6, 7), places(30, 7), torch.randn(30, 7)
    program, constants = gpu_program(f, *traced, symbolic=True)
    assert not externs(program)
    args = torch.zeros(8, 9), places(50, 9), torch.randn(50, 9)
    got = run_kernels(program, constants, args)
    torch.testing.assert_close(got[0], f(*args))


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x, at: torch.scatter_reduce(x, 0, at, x, "prod"), "no atomic mul"),
        (lambda x, at: torch.scatter_reduce(x.long(), 0, at, x.long(), "mean"), "by mean"),
    ],
)
def test_what_a_gpu_cannot_combine_is_a_library_call(fn: F, reason: str) -> None:
    program, _ = lower_for(trace(fn, torch.randn(6, 7), places(6, 7)), GPU)
    (call,) = [n for n in program.nodes if hasattr(n, "reason")]
    assert reason in call.reason


@pytest.mark.parametrize("mode", ["add", "put"])
def test_deterministic_algorithms_are_the_librarys(mode: str) -> None:
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.scatter_add(0, at, x) if mode == "add" else x.scatter(0, at, x)

    torch.use_deterministic_algorithms(True)
    try:
        program, _ = lower_for(trace(f, torch.randn(6, 7), places(6, 7)), GPU)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(externs(program)) == 1
