"""Adds multiples of rows of B to a few rows of sums: B's columns contiguous, B read once.

Eight rows of B go by at a time over a stretch of columns whose sums stay in L1, so memory sees
eight sequential streams (a register tile would read short pieces far apart: half the speed).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from jitney.kernels.llvm.gemm_tile import Routine, Tile, multiply_add, splat
from jitney.kernels.llvm.ssa import ELEMENT, Ssa, constant
from jitney.kernels.llvm.text import FunctionText


@dataclass(frozen=True)
class Axpy:
    """``rows`` of sums, vectors of ``lanes`` elements of ``dtype``."""

    rows: int
    lanes: int
    dtype: torch.dtype

    @property
    def depth(self) -> int:
        """Rows of B taken at once: their multipliers all sit in registers."""
        return max(1, (16 if self.lanes * self.dtype.itemsize == 64 else 8) // self.rows // 2 * 2)

    @property
    def name(self) -> str:
        """The function's name, unique to its content."""
        return f"jitney_axpy_{ELEMENT[self.dtype]}_{self.rows}x{self.lanes}"


@lru_cache(maxsize=64)
def axpy_routine(axpy: Axpy) -> Routine:
    """``void @name(ptr rows, i64 a_step, ptr b, i64 b_step, i64 k, i64 count, ptr out, i64
    out_step)``: ``out[r, 0:count] = sum_k a[r, k] * b[k, 0:count]``.

    ``rows`` is a table of pointers to rows of A, ``count`` a multiple of the lanes; steps in
    bytes.
    """
    f = FunctionText(
        axpy.name,
        ("ptr %rows", "i64 %a_step", "ptr %b", "i64 %b_step", "i64 %k", "i64 %count", "ptr %out")
        + ("i64 %out_step",),
    )
    rows = []
    for r in range(axpy.rows):
        slot = f.pure(f"getelementptr i8, ptr %rows, i64 {8 * r}")
        rows.append(f.emit(f"load ptr, ptr {slot}, align 8", "row"))
    zero = constant(0, axpy.dtype, axpy.lanes)
    with f.loop("0", "%count", step=axpy.lanes) as column:
        for r in range(axpy.rows):
            f.do(f"store {zero.typed}, ptr {_sum(f, axpy, r, column.index)}, align 4")
    depth = min(axpy.depth, 8)
    left = f.pure(f"urem i64 %k, {depth}")
    whole = f.pure(f"sub i64 %k, {left}")
    with f.loop("0", whole, step=depth) as k:
        _add_rows(f, axpy, rows, k.index, depth)
    if depth > 1:
        with f.loop(whole, "%k") as k:
            _add_rows(f, axpy, rows, k.index, 1)
    return Routine(axpy.name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _sum(f: FunctionText, axpy: Axpy, row: int, column: str) -> str:
    at = f.pure(f"mul i64 %out_step, {row}")
    at = f.pure(f"getelementptr i8, ptr %out, i64 {at}")
    return f.emit(f"getelementptr {ELEMENT[axpy.dtype]}, ptr {at}, i64 {column}")


def _add_rows(f: FunctionText, axpy: Axpy, rows: list[str], k: str, depth: int) -> None:
    """One pass over the columns with ``depth`` rows of B from ``k`` on."""
    element = ELEMENT[axpy.dtype]
    factors, sources = [], []
    for d in range(depth):
        here = f.emit(f"add i64 {k}, {d}")
        at = f.emit(f"mul i64 {here}, %a_step")
        for row in rows:
            pointer = f.emit(f"getelementptr i8, ptr {row}, i64 {at}")
            one = f.emit(f"load {element}, ptr {pointer}, align 1")
            factors.append(splat(f, one, element, axpy.lanes))
        at = f.emit(f"mul i64 {here}, %b_step")
        sources.append(f.emit(f"getelementptr i8, ptr %b, i64 {at}"))
    kind = f"<{axpy.lanes} x {element}>"
    tile = Tile(axpy.rows, 1, axpy.lanes, axpy.dtype)
    with f.loop("0", "%count", step=axpy.lanes) as column:
        targets = [_sum(f, axpy, r, column.index) for r in range(axpy.rows)]
        sums = []
        for target in targets:
            name = f.emit(f"load {kind}, ptr {target}, align 4")
            sums.append(Ssa(name, axpy.dtype, axpy.lanes))
        for d in range(depth):
            at = f.emit(f"getelementptr {element}, ptr {sources[d]}, i64 {column.index}")
            value = f.emit(f"load {kind}, ptr {at}, align {axpy.dtype.itemsize}")
            for r in range(axpy.rows):
                factor = factors[d * axpy.rows + r]
                sums[r] = multiply_add(f, tile, factor, value, sums[r])
        for target, total in zip(targets, sums, strict=True):
            f.do(f"store {total.typed}, ptr {target}, align 4")
