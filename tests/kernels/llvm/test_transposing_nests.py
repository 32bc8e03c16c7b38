"""Nests that read one side across: tiles of all kinds equal eager, and how they are cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.schedule_nest import Schedule, schedule_nest
from jitney.kernels.llvm.transpose_tile import rows_at_hand, stays_in_registers
from jitney.loops.ir import LoopNest
from tests.kernels.llvm.compiled import HOST, avx2_target, check, program_of

TARGETS = {"host": HOST, "avx2": avx2_target()}
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
SIZES = ((1, 70), (2, 33), (16, 64), (17, 15), (129, 70), (64, 1040), (1100, 96), (700, 528))
BODIES: dict[str, Callable[..., Any]] = {
    "copied": lambda x, y: x.t().contiguous(),
    "beside another": lambda x, y: torch.where(y == 0, y, x.t()),
    "two of them": lambda x, y: torch.where(x.t() == 0, y, x.t() == y),
    "long": lambda x, y: torch.where((x.t() == y) | (y == 1), x.t(), (y == 0).to(x.dtype)),
    "into columns": lambda x, y: torch.cat([x.t(), y, x.t()], 1),
}
#: Each dtype is copied; one of each width, and one that is computed wider, for the other bodies.
CASES = [(b, d) for b in BODIES for d in (DTYPES if b == "copied" else (*DTYPES[:3], torch.uint8))]


def _values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("body,dtype", CASES, ids=str)
def test_a_transposed_side(body: str, dtype: torch.dtype, target: str) -> None:
    for rows, columns in SIZES if body == "copied" else SIZES[3:6]:
        x, y = _values(dtype, rows, columns), _values(dtype, columns, rows)
        check(BODIES[body], x, y, target=TARGETS[target], lowered=False, rtol=0, atol=0)


def test_batches_of_transposes_are_cut_into_blocks_of_rows() -> None:
    x = _values(torch.float32, 24, 40, 1060)
    check(lambda x: x.transpose(1, 2) + 1, x, rtol=0, atol=0)
    check(lambda x: x.transpose(1, 2) + 1, x.transpose(1, 2), rtol=0, atol=0)
    check(lambda x: x.permute(2, 0, 1) * 2, x, rtol=0, atol=0)


def _long(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        y = torch.erf(y) * x.t() - y
    return y


def _scheduled(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Schedule, LoopNest]:
    program, _ = program_of(fn, *args)
    (nest,) = program.nodes
    assert isinstance(nest, LoopNest)
    target = replace(HOST, cores=2)
    return schedule_nest(nest, isa_of(target), target.cores), nest


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_dtype_is_transposed_by_elements(dtype: torch.dtype) -> None:
    schedule, nest = _scheduled(lambda x: x.t().contiguous(), _values(dtype, 512, 512))
    assert schedule.tile is not None and schedule.vector is not None
    assert len(schedule.tile.loads) == 1
    assert schedule.item_count().const >= 8, nest


ROWS = {1000: 1024, 1024: 1024, 2048: 512, 3072: 1024, 4096: 256, 8192: 256}


@pytest.mark.parametrize("size,rows", ROWS.items())
def test_rows_whose_pages_crowd_are_few(size: int, rows: int) -> None:
    """Each row begins a page or some pages after the one before."""
    schedule, _ = _scheduled(lambda x: x.t().contiguous(), torch.empty(size, size))
    assert schedule.tile is not None and schedule.vector is not None
    assert rows_at_hand(schedule.tile, schedule.vector) == rows
    assert schedule.block is None if rows >= size else schedule.block == rows
    assert schedule.item_count().const >= 16


@pytest.mark.parametrize("fn,short", [(lambda x, y: x.t() + y, True), (_long, False)])
def test_a_short_body_finds_its_tile_in_registers(fn: Callable[..., Any], short: bool) -> None:
    schedule, _ = _scheduled(fn, torch.empty(64, 64), torch.empty(64, 64))
    assert schedule.tile is not None
    assert stays_in_registers(schedule.tile, schedule.lanes) is short
