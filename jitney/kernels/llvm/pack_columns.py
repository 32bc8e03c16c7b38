"""Lays columns of B out as the tile reads them: ``out[k, 0:width]``, one panel per call.

Rows of B whose k is contiguous (a linear layer's weight) are transposed four k at a time: each
register gathers four-element pieces of the rows ``j, j + 4, j + 8, …``, so that two rounds of
in-lane shuffles are all it takes (0.2 cycles an element on Zen 4; 4% of a GEMM of 128 rows).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

from jitney.kernels.llvm.gemm_tile import Routine, prefetch
from jitney.kernels.llvm.text import FunctionText

#: Rows of several panels that are asked for before they are copied: each lies on a page of its own.
AHEAD = 8

PARAMETERS = ("ptr %b", "i64 %b_step", "i64 %k", "i64 %count", "ptr %out")


@lru_cache(maxsize=64)
def transpose_routine(lanes: int, vectors: int) -> Routine:
    """``void @name(ptr b, i64 b_step, i64 k, i64 count, ptr out)`` for 4-byte elements.

    ``out[i, j] = b[j][i]`` with rows of B ``b_step`` bytes apart, k contiguous, ``count`` rows
    valid: the others repeat the last one.
    """
    name = f"jitney_pack_transpose_{vectors}x{lanes}"
    f = FunctionText(name, PARAMETERS)
    last = f.pure("sub i64 %count, 1")
    whole = f.pure("and i64 %k, -4")
    line = lanes * vectors * 4
    with f.loop("0", str(lanes * vectors), step=lanes, nonempty=True) as part:
        rows = [_clamped_row(f, part.index, r, last) for r in range(lanes)]
        column = f.emit(f"getelementptr i32, ptr %out, i64 {part.index}")
        with f.loop("0", whole, step=4) as loop:
            _transpose_four(f, lanes, rows, loop.index, column, line)
        with f.loop(whole, "%k") as loop:
            at = f.emit(f"mul i64 {loop.index}, {line}")
            at = f.emit(f"getelementptr i8, ptr {column}, i64 {at}")
            for r in range(lanes):
                source = f.emit(f"getelementptr i32, ptr {rows[r]}, i64 {loop.index}")
                value = f.emit(f"load i32, ptr {source}, align 1")
                target = f.emit(f"getelementptr i8, ptr {at}, i64 {4 * r}")
                f.do(f"store i32 {value}, ptr {target}, align 4")
    return Routine(name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _clamped_row(f: FunctionText, first: str, row: int, last: str) -> str:
    index = f.smaller(f.emit(f"add i64 {first}, {row}"), last)
    offset = f.emit(f"mul i64 {index}, %b_step")
    return f.emit(f"getelementptr i8, ptr %b, i64 {offset}")


def _transpose_four(
    f: FunctionText, lanes: int, rows: list[str], k: str, column: str, line: int
) -> None:
    pieces = []
    for row in rows:
        at = f.emit(f"getelementptr i32, ptr {row}, i64 {k}")
        pieces.append(f.emit(f"load <4 x i32>, ptr {at}, align 1"))
    wide = [_joined(f, pieces[j::4], 4) for j in range(4)]
    lows = [_interleave(f, lanes, wide[i], wide[i + 1], 1, 0) for i in (0, 2)]
    highs = [_interleave(f, lanes, wide[i], wide[i + 1], 1, 2) for i in (0, 2)]
    pairs = ((lows, 0), (lows, 2), (highs, 0), (highs, 2))
    results = [_interleave(f, lanes, two[0], two[1], 2, start) for two, start in pairs]
    for j, result in enumerate(results):
        at = f.emit(f"add i64 {k}, {j}")
        at = f.emit(f"mul i64 {at}, {line}")
        at = f.emit(f"getelementptr i8, ptr {column}, i64 {at}")
        f.do(f"store <{lanes} x i32> {result}, ptr {at}, align 4")


def _joined(f: FunctionText, parts: list[str], lanes: int) -> str:
    """Vectors of ``lanes`` words side by side in one."""
    while len(parts) > 1:
        kind = f"<{lanes} x i32>"
        order = _mask(range(2 * lanes))
        parts = [
            f.emit(f"shufflevector {kind} {a}, {kind} {b}, {order}")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        lanes *= 2
    return parts[0]


def _interleave(f: FunctionText, lanes: int, a: str, b: str, unit: int, start: int) -> str:
    """Within each 128-bit lane: two words from ``start`` on, of ``a`` and ``b`` in turn, ``unit``
    words at a time."""
    order = []
    for base in range(0, lanes, 4):
        for piece in range(2 // unit):
            words = [base + start + piece * unit + u for u in range(unit)]
            order += words + [lanes + w for w in words]
    kind = f"<{lanes} x i32>"
    return f.emit(f"shufflevector {kind} {a}, {kind} {b}, {_mask(order)}")


def _mask(order: Iterable[int]) -> str:
    numbers = list(order)
    return f"<{len(numbers)} x i32> <" + ", ".join(f"i32 {n}" for n in numbers) + ">"


@lru_cache(maxsize=64)
def copy_routine(dtype: torch.dtype, lanes: int, vectors: int, panels: int = 1) -> Routine:
    """As `transpose_routine`, for B whose columns are contiguous: ``out[i, j] = b[i][j]`` with
    rows ``b_step`` bytes apart; columns from ``count`` on become 0. Of more than one of ``panels``,
    each begins ``i64 pitch`` bytes (one more parameter) after the one before."""
    size = dtype.itemsize
    name = f"jitney_pack_copy{size}_{vectors}x{lanes}" + f"x{panels}" * (panels > 1)
    f = FunctionText(name, PARAMETERS + ("i64 %pitch",) * (panels > 1))
    word = f"i{8 * size}"
    kind = f"<{lanes} x {word}>"
    masks = [_lanes_below(f, lanes, v * lanes) for v in range(panels * vectors)]
    with f.loop("0", "%k") as loop:
        source = f.emit(f"mul i64 {loop.index}, %b_step")
        source = f.emit(f"getelementptr i8, ptr %b, i64 {source}")
        line = f.emit(f"mul i64 {loop.index}, {lanes * vectors * size}")
        target = f.emit(f"getelementptr i8, ptr %out, i64 {line}")
        if panels > 1 and AHEAD:
            _prefetch_row(f, loop.index, panels * vectors * lanes * size)
        for v in range(panels * vectors):
            if v and v % vectors == 0:
                target = f.emit(f"getelementptr i8, ptr {target}, i64 %pitch")
            at = f.emit(f"getelementptr i8, ptr {source}, i64 {v * lanes * size}")
            value = _masked_load(f, kind, lanes, at, masks[v])
            at = f.emit(f"getelementptr i8, ptr {target}, i64 {v % vectors * lanes * size}")
            f.do(f"store {kind} {value}, ptr {at}, align {size}")
    return Routine(name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _prefetch_row(f: FunctionText, row: str, size: int) -> None:
    """Asks for ``size`` bytes of the row `AHEAD` of ``row``, or of the last row."""
    last = f.pure("sub i64 %k, 1")
    later = f.smaller(f.emit(f"add i64 {row}, {AHEAD}"), last)
    later = f.emit(f"mul i64 {later}, %b_step")
    later = f.emit(f"getelementptr i8, ptr %b, i64 {later}")
    for byte in range(0, size, 64):
        prefetch(f, f.emit(f"getelementptr i8, ptr {later}, i64 {byte}"))


def _lanes_below(f: FunctionText, lanes: int, first: int) -> str:
    numbers = ", ".join(f"i64 {first + i}" for i in range(lanes))
    kind = f"<{lanes} x i64>"
    one = f.pure(f"insertelement {kind} poison, i64 %count, i64 0")
    count = f.pure(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer")
    return f.pure(f"icmp slt {kind} <{numbers}>, {count}")


def _masked_load(f: FunctionText, kind: str, lanes: int, at: str, mask: str) -> str:
    suffix = f"v{lanes}{kind.split('x ')[1][:-1]}"
    f.declare(f"declare {kind} @llvm.masked.load.{suffix}.p0(ptr, i32, <{lanes} x i1>, {kind})")
    return f.emit(
        f"call {kind} @llvm.masked.load.{suffix}.p0(ptr {at}, i32 1, <{lanes} x i1> {mask}, "
        f"{kind} zeroinitializer)"
    )


@lru_cache(maxsize=64)
def interleave_routine(lanes: int, vectors: int, indexed: bool = False, panels: int = 1) -> Routine:
    """As `copy_routine` for bfloat16 pairs: ``out[i, j] = (b[2 * i][j], b[2 * i + 1][j])``, ``k``
    counting pairs. ``indexed``: ``ptr b_offsets``, bytes from ``b`` to each of its rows, in place
    of ``b_step``."""
    name = f"jitney_pack_interleave_{vectors}x{lanes}" + "_indexed" * indexed
    name += f"x{panels}" * (panels > 1)
    b_step = "ptr %b_offsets" if indexed else "i64 %b_step"
    parameters = tuple(b_step if p == "i64 %b_step" else p for p in PARAMETERS)
    f = FunctionText(name, parameters + ("i64 %pitch",) * (panels > 1))
    kind, pair = f"<{lanes} x i16>", f"<{2 * lanes} x i16>"
    order = _mask([x for i in range(lanes) for x in (i, lanes + i)])
    masks = [_lanes_below(f, lanes, v * lanes) for v in range(panels * vectors)]
    with f.loop("0", "%k") as loop:
        even, odd = _rows_of_pair(f, loop.index, indexed)
        target = f.emit(f"mul i64 {loop.index}, {lanes * vectors * 4}")
        target = f.emit(f"getelementptr i8, ptr %out, i64 {target}")
        for v in range(panels * vectors):
            if v and v % vectors == 0:
                target = f.emit(f"getelementptr i8, ptr {target}, i64 %pitch")
            values = []
            for source in (even, odd):
                at = f.emit(f"getelementptr i8, ptr {source}, i64 {v * lanes * 2}")
                values.append(_masked_load(f, kind, lanes, at, masks[v]))
            both = f.emit(f"shufflevector {kind} {values[0]}, {kind} {values[1]}, {order}")
            at = f.emit(f"getelementptr i8, ptr {target}, i64 {v % vectors * lanes * 4}")
            f.do(f"store {pair} {both}, ptr {at}, align 4")
    return Routine(name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _rows_of_pair(f: FunctionText, pair: str, indexed: bool) -> list[str]:
    """Pointers to both rows of B that a pair of k reads."""
    first = f.emit(f"shl i64 {pair}, 1")
    rows = []
    for row in (first, f.emit(f"or i64 {first}, 1")):
        if indexed:
            slot = f.emit(f"getelementptr i64, ptr %b_offsets, i64 {row}")
            moved = f.emit(f"load i64, ptr {slot}, align 8")
        else:
            moved = f.emit(f"mul i64 {row}, %b_step")
        rows.append(f.emit(f"getelementptr i8, ptr %b, i64 {moved}"))
    return rows


@lru_cache(maxsize=64)
def pad_pairs_routine(lanes: int, vectors: int) -> Routine:
    """As `interleave_routine`, ``k`` counting rows: those past the last are zeros, up to a multiple
    of 32 rows."""
    name = f"jitney_pack_pairs_{vectors}x{lanes}"
    f = FunctionText(name, PARAMETERS)
    kind, pair = f"<{lanes} x i16>", f"<{2 * lanes} x i16>"
    order = _mask([x for i in range(lanes) for x in (i, lanes + i)])
    masks = [_lanes_below(f, lanes, v * lanes) for v in range(vectors)]
    end = f.pure(f"and i64 {f.pure('add i64 %k, 31')}, -32")
    with f.loop("0", end, step=2) as loop:
        target = f.emit(f"mul i64 {loop.index}, {lanes * vectors * 2}")
        target = f.emit(f"getelementptr i8, ptr %out, i64 {target}")
        rows = []
        for position in range(2):
            row = f.emit(f"add i64 {loop.index}, {position}")
            exists = f.emit(f"icmp slt i64 {row}, %k")
            moved = f.emit(f"mul i64 {row}, %b_step")
            rows.append((f.emit(f"getelementptr i8, ptr %b, i64 {moved}"), exists))
        for v, mask in enumerate(masks):
            values = []
            for source, exists in rows:
                at = f.emit(f"getelementptr i8, ptr {source}, i64 {v * lanes * 2}")
                bits = f"<{lanes} x i1>"
                there = f.emit(f"select i1 {exists}, {bits} {mask}, {bits} zeroinitializer")
                values.append(_masked_load(f, kind, lanes, at, there))
            both = f.emit(f"shufflevector {kind} {values[0]}, {kind} {values[1]}, {order}")
            at = f.emit(f"getelementptr i8, ptr {target}, i64 {v * lanes * 4}")
            f.do(f"store {pair} {both}, ptr {at}, align 4")
    return Routine(name, frozenset({f.finish(linkage="internal"), *f.declarations}))
