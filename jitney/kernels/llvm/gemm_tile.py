"""The register tile all matrix products share: a few rows of A times a few vectors of B.

A tile function is written once per module and called by every node that needs its shape, so a
GEMM costs the compiler its driver and epilogue only. On Zen 4 (one 512-bit FMA a cycle) 6 rows by
4 vectors reach 98% of peak with A unpacked at any leading dimension; 14 by 2 reach it only with A
packed, since 14 rows at a stride of 4 KiB fall into one L1 set (docs/decisions/020-gemm-tile.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from jitney.kernels.llvm.ssa import ELEMENT, Ssa, constant, intrinsic_suffix, is_float
from jitney.kernels.llvm.text import FunctionText

#: Steps whose products are summed in registers before they are added to the blocks before: a
#: float32 sum of 1,152 terms has an error of 1.2e-7 so, as torch's has, and 3.3e-7 in one chain.
BLOCK = 256


@dataclass(frozen=True)
class Tile:
    """``rows`` by ``vectors`` of ``lanes`` elements accumulated in ``dtype``.

    ``pairs``: A and B hold bfloat16 pairs along k, multiplied by the AVX-512 BF16 dot product
    into f32; ``k`` then counts pairs. ``indexed``: where each row of B lies is read from a table
    (a convolution's patches). ``masked``: columns from some number on are not read. ``patches``:
    rows of A come in pieces, each found through a table, as do the rows of B that go with them.
    ``continued``: ``out`` may hold the sums of steps before.
    """

    rows: int
    vectors: int
    lanes: int
    dtype: torch.dtype
    pairs: bool = False
    indexed: bool = False
    masked: bool = False
    patches: bool = False
    continued: bool = False

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        """The function's name, unique to its content."""
        kind = "bf16pairs" if self.pairs else ELEMENT[self.dtype]
        flags = "_indexed" * self.indexed + "_masked" * self.masked
        flags += "_patches" * self.patches + "_continued" * self.continued
        return f"jitney_tile_{kind}_{self.rows}x{self.vectors}x{self.lanes}{flags}"


@dataclass(frozen=True)
class Routine:
    """A function shared by nodes: its name, and the module texts (each written once) it needs."""

    name: str
    texts: frozenset[str]


@lru_cache(maxsize=256)
def tile_routine(tile: Tile) -> Routine:
    """``void @name(ptr rows, i64 a_step, ptr b, i64 b_step, i64 k, ptr out, i64 out_step, ptr
    next, i64 next_step)``: ``out[r, :] = sum_k a[r, k] * b[k, :]``, zeros where ``k`` is 0.

    ``rows`` is a table of pointers to the rows of A; the steps are in bytes: from one k to the
    next in A, in B, from one row to the next of ``out``. One line of ``next + k * next_step`` is
    prefetched a step, to have the following panel near. Indexed: ``ptr b_offsets``, bytes from
    ``b`` to each row of B, in place of ``b_step``. Masked: one more ``i64 valid``, columns to read.
    Patches: two more, ``i64 taps`` (pieces of ``k`` each; row r's piece t is at ``rows[r * taps +
    t]``) and ``i64 tap_step`` (bytes from one piece's first row of B to the next's). Continued:
    ``i64 before``, steps whose sums ``out`` holds; these are added to them unless it is 0.
    """
    b_step = "ptr %b_offsets" if tile.indexed else "i64 %b_step"
    f = FunctionText(
        tile.name,
        ("ptr %rows", "i64 %a_step", "ptr %b", b_step, "i64 %k", "ptr %out")
        + ("i64 %out_step", "ptr %next", "i64 %next_step")
        + (("i64 %valid",) if tile.masked else ())
        + (("i64 %taps", "i64 %tap_step") if tile.patches else ())
        + (("i64 %before",) if tile.continued else ()),
    )
    zero = constant(0, torch.int64)
    if tile.patches:
        with f.loop("0", "%taps", carried=(zero,), nonempty=True) as piece:
            rows = _row_pointers(f, tile, piece.index)
            b = f.emit(f"mul i64 {piece.index}, %tap_step")
            b = f.emit(f"getelementptr i8, ptr %b, i64 {b}")
            starts = (zero, zero, *piece.carried)
            (*_, ahead), sums = _sum_block(f, tile, rows, b, ("0", "%k"), starts)
            piece.next = (ahead,)
            _add_to_out(f, tile, piece.index, sums)
    else:
        rows = _row_pointers(f, tile, None)
        # The first block is there even where it has no steps: it stores the zeros.
        with f.loop("0", "%k", step=BLOCK, carried=(zero, zero, zero), nonempty=True) as block:
            left = f.pure(f"sub i64 %k, {block.index}")
            whole = f.pure(f"icmp sgt i64 {left}, {BLOCK}")
            count = f.pure(f"select i1 {whole}, i64 {BLOCK}, i64 {left}")
            steps = (block.index, count)
            block.next, sums = _sum_block(f, tile, rows, "%b", steps, block.carried)
            number = block.index
            if tile.continued:
                number = f.pure(f"add i64 {number}, %before")
            _add_to_out(f, tile, number, sums)
    return Routine(tile.name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _row_pointers(f: FunctionText, tile: Tile, tap: str | None) -> list[str]:
    """Pointers to the rows of A, or to one piece of each."""
    rows = []
    for r in range(tile.rows):
        if tap is None:
            slot = f.pure(f"getelementptr i8, ptr %rows, i64 {8 * r}")
        else:
            first = f.pure(f"mul i64 %taps, {8 * r}")
            slot = f.pure(f"getelementptr i8, ptr %rows, i64 {first}")
            slot = f.emit(f"getelementptr i64, ptr {slot}, i64 {tap}")
        rows.append(f.emit(f"load ptr, ptr {slot}, align 8", "row"))
    return rows


def _sum_block(
    f: FunctionText,
    tile: Tile,
    rows: list[str],
    b: str,
    steps: tuple[str, str],
    starts: tuple[Ssa, ...],
) -> tuple[tuple[Ssa, ...], tuple[Ssa, ...]]:
    """The sums of the products of some steps, given by the first's number and how many; with them
    the offsets into A, B and ``next`` that began at ``starts``, after those steps."""
    first, count = steps
    zeros = [constant(0, tile.dtype, tile.lanes)] * (tile.rows * tile.vectors)
    with f.loop("0", count, carried=(*starts, *zeros)) as loop:
        a_at, b_at, next_at, *sums = loop.carried
        if tile.indexed:
            step = f.emit(f"add i64 {first}, {loop.index}")
            slot = f.emit(f"getelementptr i64, ptr %b_offsets, i64 {step}")
            here = f.emit(f"load i64, ptr {slot}, align 8")
        else:
            here = b_at.name
        columns = _columns(f, tile, f.emit(f"getelementptr i8, ptr {b}, i64 {here}"))
        sums = _one_step(f, tile, rows, a_at, columns, sums)
        line = f.emit(f"getelementptr i8, ptr %next, i64 {next_at.name}")
        prefetch(f, line)
        moves = (
            (a_at, "%a_step"),
            (b_at, "0" if tile.indexed else "%b_step"),
            (next_at, "%next_step"),
        )
        moved = [Ssa(f.emit(f"add i64 {x.name}, {s}"), torch.int64) for x, s in moves]
        loop.next = (*moved, *sums)
    return loop.results[:3], loop.results[3:]


def _add_to_out(f: FunctionText, tile: Tile, number: str, sums: Sequence[Ssa]) -> None:
    """Adds the sums of block ``number`` to those of the blocks before it."""
    is_first = f.pure(f"icmp eq i64 {number}, 0")
    add = "fadd" if is_float(tile.dtype) else "add"
    for position, value in enumerate(sums):
        r, v = divmod(position, tile.vectors)
        row = f.pure(f"mul i64 %out_step, {r}")
        at = f.pure(f"getelementptr i8, ptr %out, i64 {row}")
        at = f.pure(f"getelementptr i8, ptr {at}, i64 {_vector_bytes(tile) * v}")
        kind = value.type
        before = f.emit(f"load {kind}, ptr {at}, align {tile.dtype.itemsize}")
        before = f.emit(f"select i1 {is_first}, {kind} zeroinitializer, {kind} {before}")
        total = f.emit(f"{add} {kind} {before}, {value.name}")
        f.do(f"store {kind} {total}, ptr {at}, align {tile.dtype.itemsize}")


def _columns(f: FunctionText, tile: Tile, row: str) -> list[str]:
    """The vectors of a row of B at ``row``."""
    kind = zero_type(tile)
    loaded = []
    for v in range(tile.vectors):
        at = f.emit(f"getelementptr i8, ptr {row}, i64 {_vector_bytes(tile) * v}")
        if not tile.masked:
            loaded.append(f.emit(f"load {kind}, ptr {at}, align 4", "b"))
            continue
        mask = _columns_below(f, tile, v)
        dtype = torch.int32 if tile.pairs else tile.dtype
        callee = f"llvm.masked.load.{intrinsic_suffix(dtype, tile.lanes)}.p0"
        f.declare(f"declare {kind} @{callee}(ptr, i32, <{tile.lanes} x i1>, {kind})")
        code = f"call {kind} @{callee}(ptr {at}, i32 4, <{tile.lanes} x i1> {mask}, "
        loaded.append(f.emit(f"{code}{kind} zeroinitializer)", "b"))
    return loaded


def _columns_below(f: FunctionText, tile: Tile, vector: int) -> str:
    """The mask of one vector's columns that are below ``%valid``."""
    kind = f"<{tile.lanes} x i64>"
    first = vector * tile.lanes
    numbers = ", ".join(f"i64 {first + i}" for i in range(tile.lanes))
    one = f.pure(f"insertelement {kind} poison, i64 %valid, i64 0")
    order = f"<{tile.lanes} x i32> zeroinitializer"
    wide = f.pure(f"shufflevector {kind} {one}, {kind} poison, {order}")
    return f.pure(f"icmp slt {kind} <{numbers}>, {wide}")


def _one_step(
    f: FunctionText, tile: Tile, rows: list[str], a_at: Ssa, columns: list[str], sums: list[Ssa]
) -> list[Ssa]:
    """The sums after one more k (or pair of k)."""
    result = []
    for r in range(tile.rows):
        at = f.emit(f"getelementptr i8, ptr {rows[r]}, i64 {a_at.name}")
        scalar = "i32" if tile.pairs else ELEMENT[tile.dtype]
        one = f.emit(f"load {scalar}, ptr {at}, align 1", "a")
        wide = splat(f, one, scalar, tile.lanes)
        for v in range(tile.vectors):
            result.append(multiply_add(f, tile, wide, columns[v], sums[r * tile.vectors + v]))
    return result


def splat(f: FunctionText, scalar: str, element: str, lanes: int) -> str:
    """``scalar`` in every lane."""
    kind = f"<{lanes} x {element}>"
    first = f.emit(f"insertelement {kind} poison, {element} {scalar}, i64 0")
    mask = f"<{lanes} x i32> zeroinitializer"
    return f.emit(f"shufflevector {kind} {first}, {kind} poison, {mask}")


def zero_type(tile: Tile) -> str:
    """The LLVM type of a vector of B as the tile loads it."""
    return f"<{tile.lanes} x {'i32' if tile.pairs else ELEMENT[tile.dtype]}>"


def multiply_add(f: FunctionText, tile: Tile, a: str, b: str, total: Ssa) -> Ssa:
    """``total + a * b``, fused where the dtype has a fused form."""
    kind = zero_type(tile)
    if tile.pairs:
        return Ssa(_dot_pairs(f, tile.lanes, total, a, b), tile.dtype, tile.lanes)
    if is_float(tile.dtype):
        callee = f"llvm.fma.{intrinsic_suffix(tile.dtype, tile.lanes)}"
        f.declare(f"declare {kind} @{callee}({kind}, {kind}, {kind})")
        code = f"call {kind} @{callee}({kind} {a}, {kind} {b}, {total.typed})"
        return Ssa(f.emit(code, "s"), tile.dtype, tile.lanes)
    product = f.emit(f"mul {kind} {a}, {b}")
    return Ssa(f.emit(f"add {kind} {total.name}, {product}", "s"), tile.dtype, tile.lanes)


def _dot_pairs(f: FunctionText, lanes: int, total: Ssa, a: str, b: str) -> str:
    callee = f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    words, pairs = f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    f.declare(f"declare {total.type} @{callee}({total.type}, {pairs}, {pairs})")
    left = f.emit(f"bitcast {words} {a} to {pairs}")
    right = f.emit(f"bitcast {words} {b} to {pairs}")
    return f.emit(f"call {total.type} @{callee}({total.typed}, {pairs} {left}, {pairs} {right})")


def prefetch(f: FunctionText, pointer: str) -> None:
    """Asks for the line at ``pointer``."""
    f.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")


def _vector_bytes(tile: Tile) -> int:
    return tile.lanes * tile.dtype.itemsize
