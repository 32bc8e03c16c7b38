"""Dot products of a few rows of A with a few rows of B, both contiguous along k.

What a linear layer needs when it has one to sixteen rows of input: the weight is read once, as it
lies, at the speed of memory, and nothing is packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from jitney.kernels.llvm.conversions import cast
from jitney.kernels.llvm.gemm_tile import Routine
from jitney.kernels.llvm.ssa import ELEMENT, Ssa, constant, intrinsic_suffix, memory_type
from jitney.kernels.llvm.text import FunctionText


@dataclass(frozen=True)
class RowDot:
    """``rows`` of A by ``columns`` rows of B, ``unroll`` vectors of ``lanes`` a step.

    ``a`` and ``b`` are the dtypes in memory; sums are in ``dtype`` (f32 or f64). ``pairs``: both
    are bfloat16 and multiplied by the AVX-512 BF16 dot product, two k a lane.
    """

    rows: int
    columns: int
    unroll: int
    lanes: int
    a: torch.dtype
    b: torch.dtype
    dtype: torch.dtype
    pairs: bool = False

    @property
    def name(self) -> str:
        """The function's name, unique to its content."""
        kinds = "_".join(str(t)[6:] for t in (self.a, self.b, self.dtype))
        pairs = "_pairs" if self.pairs else ""
        shape = f"{self.rows}x{self.columns}x{self.unroll}x{self.lanes}"
        return f"jitney_row_dot_{kinds}_{shape}{pairs}"

    @property
    def step(self) -> int:
        """Elements of k in one vector."""
        return self.lanes * (2 if self.pairs else 1)


@lru_cache(maxsize=256)
def row_dot_routine(dot: RowDot) -> Routine:
    """``void @name(ptr rows, ptr columns, i64 k, ptr out, i64 out_step, i64 ahead)``:
    ``out[r, c] = sum_k rows[r][k] * columns[c][k]``.

    ``rows`` and ``columns`` are tables of pointers; rows of ``out`` lie ``out_step`` bytes apart.
    B is prefetched ``ahead`` bytes on.
    """
    parameters = ("ptr %rows", "ptr %columns", "i64 %k", "ptr %out", "i64 %out_step", "i64 %ahead")
    f = FunctionText(dot.name, parameters)
    a = [_pointer(f, "%rows", r) for r in range(dot.rows)]
    b = [_pointer(f, "%columns", c) for c in range(dot.columns)]
    zero = constant(0, dot.dtype, dot.lanes)
    count = dot.rows * dot.columns
    sums = [zero] * (count * dot.unroll)
    block = dot.step * dot.unroll
    whole = f.emit(f"and i64 %k, {-block}" if block & (block - 1) == 0 else "add i64 0, 0")
    with f.loop("0", whole, step=block, carried=sums) as loop:
        carried = list(loop.carried)
        for u in range(dot.unroll):
            at = f.emit(f"add i64 {loop.index}, {u * dot.step}")
            part = carried[u * count : (u + 1) * count]
            carried[u * count : (u + 1) * count] = _step(f, dot, a, b, at, part, None)
        loop.next = tuple(carried)
    sums = _folded(f, list(loop.results), count)
    with f.loop(whole, "%k", step=dot.step, carried=sums) as loop:
        left = f.emit(f"sub i64 %k, {loop.index}")
        loop.next = tuple(_step(f, dot, a, b, loop.index, list(loop.carried), left))
    for r in range(dot.rows):
        row = f.pure(f"mul i64 %out_step, {r}")
        row = f.pure(f"getelementptr i8, ptr %out, i64 {row}")
        for c in range(dot.columns):
            total = _horizontal(f, loop.results[r * dot.columns + c])
            at = f.pure(f"getelementptr i8, ptr {row}, i64 {c * dot.dtype.itemsize}")
            f.do(f"store {total.typed}, ptr {at}, align {dot.dtype.itemsize}")
    return Routine(dot.name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _pointer(f: FunctionText, table: str, position: int) -> str:
    slot = f.pure(f"getelementptr i8, ptr {table}, i64 {8 * position}")
    return f.emit(f"load ptr, ptr {slot}, align 8", "row")


def _step(
    f: FunctionText,
    dot: RowDot,
    a: list[str],
    b: list[str],
    at: str,
    sums: list[Ssa],
    left: str | None,
) -> list[Ssa]:
    """The sums after one more vector of k; with ``left`` only that many elements of it."""
    mask = None if left is None else _lanes_below(f, left, dot.step)
    rows = [_vector(f, dot, p, dot.a, at, mask) for p in a]
    result = list(sums)
    for c, pointer in enumerate(b):
        column = _vector(f, dot, pointer, dot.b, at, mask)
        if left is None:
            _prefetch(f, dot, pointer, at)
        for r, row in enumerate(rows):
            where = r * dot.columns + c
            result[where] = _multiply_add(f, dot, row, column, result[where])
    return result


def _vector(
    f: FunctionText, dot: RowDot, pointer: str, dtype: torch.dtype, at: str, mask: str | None
) -> Ssa:
    kind = memory_type(dtype, dot.step)
    where = f.emit(f"getelementptr {ELEMENT[dtype]}, ptr {pointer}, i64 {at}")
    if mask is None:
        name = f.emit(f"load {kind}, ptr {where}, align {dtype.itemsize}")
    else:
        callee = f"llvm.masked.load.{intrinsic_suffix(dtype, dot.step)}.p0"
        f.declare(f"declare {kind} @{callee}(ptr, i32, <{dot.step} x i1>, {kind})")
        name = f.emit(
            f"call {kind} @{callee}(ptr {where}, i32 {dtype.itemsize}, "
            f"<{dot.step} x i1> {mask}, {kind} zeroinitializer)"
        )
    value = Ssa(name, dtype, dot.step)
    return value if dot.pairs else cast(f, value, dot.dtype)


def _multiply_add(f: FunctionText, dot: RowDot, a: Ssa, b: Ssa, total: Ssa) -> Ssa:
    if dot.pairs:
        pairs = f"<{dot.step} x bfloat>"
        left = f.emit(f"bitcast {a.typed} to {pairs}")
        right = f.emit(f"bitcast {b.typed} to {pairs}")
        callee = f"llvm.x86.avx512bf16.dpbf16ps.{dot.lanes * 32}"
        f.declare(f"declare {total.type} @{callee}({total.type}, {pairs}, {pairs})")
        code = f"call {total.type} @{callee}({total.typed}, {pairs} {left}, {pairs} {right})"
    else:
        callee = f"llvm.fma.{intrinsic_suffix(total.dtype, total.lanes)}"
        f.declare(f"declare {total.type} @{callee}({total.type}, {total.type}, {total.type})")
        code = f"call {total.type} @{callee}({a.typed}, {b.typed}, {total.typed})"
    return Ssa(f.emit(code, "s"), total.dtype, total.lanes)


def _prefetch(f: FunctionText, dot: RowDot, pointer: str, at: str) -> None:
    f.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    far = f.pure(f"getelementptr i8, ptr {pointer}, i64 %ahead")
    far = f.emit(f"getelementptr {ELEMENT[dot.b]}, ptr {far}, i64 {at}")
    f.do(f"call void @llvm.prefetch.p0(ptr {far}, i32 0, i32 3, i32 1)")


def _lanes_below(f: FunctionText, count: str, lanes: int) -> str:
    kind = f"<{lanes} x i64>"
    numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    one = f.emit(f"insertelement {kind} poison, i64 {count}, i64 0")
    wide = f.emit(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer")
    return f.emit(f"icmp slt {kind} <{numbers}>, {wide}")


def _folded(f: FunctionText, sums: list[Ssa], count: int) -> list[Ssa]:
    """The sum of the partial sums of the unrolled steps."""
    while len(sums) > count:
        added = [
            Ssa(f.emit(f"fadd {a.typed}, {b.name}"), a.dtype, a.lanes)
            for a, b in zip(sums[:count], sums[count : 2 * count], strict=True)
        ]
        sums = added + sums[2 * count :]
    return sums


def _horizontal(f: FunctionText, value: Ssa) -> Ssa:
    callee = f"llvm.vector.reduce.fadd.{intrinsic_suffix(value.dtype, value.lanes)}"
    scalar = ELEMENT[value.dtype]
    f.declare(f"declare {scalar} @{callee}({scalar}, {value.type})")
    start = "0.0" if scalar == "double" else "0.000000e+00"
    name = f.emit(f"call reassoc {scalar} @{callee}({scalar} {start}, {value.typed})")
    return Ssa(name, value.dtype)
