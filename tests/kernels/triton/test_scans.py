"""Running sums, products and log-sums in kernels: rows in one tile, in several, and columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops import ir
from jitney.loops.target import Target
from tests.kernels.triton.interpreted import H200, gpu_program, run_kernels
from tests.loops.lowered import externs

SCANS = {
    "sum": torch.cumsum,
    "prod": lambda x, dim: torch.cumprod(x * 0.1 + 1, dim),
    "logaddexp": torch.logcumsumexp,
}


def check(fn, x: torch.Tensor, schedule=schedule_nest) -> ir.LoopProgram:
    program, constants = gpu_program(fn, x)
    assert not externs(program)
    (got,) = run_kernels(program, constants, (x,), schedule=schedule)
    torch.testing.assert_close(got, fn(x), rtol=1e-4, atol=1e-4, equal_nan=True)
    return program


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 5), 1), ((5, 64), 1), ((35, 9), 0), ((4, 6, 5), 1)]
)
def test_rows_and_columns(name: str, shape: tuple[int, ...], dim: int) -> None:
    check(lambda x: SCANS[name](x, dim), torch.randn(shape))


@pytest.mark.parametrize("name", SCANS)
def test_rows_in_several_tiles(name: str) -> None:
    def short_tiles(nest: ir.LoopNest, target: Target) -> Schedule:
        return replace(schedule_nest(nest, target), r_block=16, row_limit=0)

    def scan(x: torch.Tensor) -> torch.Tensor:
        return SCANS[name](x, 1)

    check(scan, torch.randn(3, 70), short_tiles)
    long, _ = gpu_program(scan, torch.randn(2, 33000))
    assert schedule_nest(long.nodes[-1], H200).row_limit == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: torch.cumsum(x, -1), torch.randint(0, 2, (3, 700)).to(dtype))


def test_special_values() -> None:
    x = torch.randn(4, 33)
    x[0, 3], x[1, 4], x[2, :5] = float("nan"), float("inf"), -float("inf")
    x[3, 2:] = -float("inf")
    check(lambda x: torch.logcumsumexp(x, -1), x)


def test_what_comes_before_is_part_of_it() -> None:
    program = check(lambda x: torch.cumsum((x > 0).long(), -1), torch.randn(9, 50))
    assert len(program.nodes) == 1


@pytest.mark.parametrize("columns", [7, 300])
def test_symbolic_extents(columns: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, -1) + 1

    program, constants = gpu_program(f, torch.randn(5, 6), symbolic=True)
    assert not externs(program)
    x = torch.randn(3, columns)
    (got,) = run_kernels(program, constants, (x,))
    torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-4)


def test_a_sum_begins_with_zero() -> None:
    x = torch.full((3, 700), -0.0)
    program, constants = gpu_program(lambda x: x.cumsum(-1), x)
    (got,) = run_kernels(program, constants, (x,))
    assert not got.signbit().any()
