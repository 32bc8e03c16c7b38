"""The tile of bfloat16 products on the matrix registers of AMX.

Eight registers of 16 rows by 64 bytes: four hold the float32 sums of up to 32 rows by 32 columns,
two the rows of A where they lie, two what a panel of pairs (`pack_columns`) holds of B, whose
layout is the one that the instruction wants. One instruction does 16 by 16 by 32 multiply-adds,
in 16 cycles; the four loads that go with four of them take half of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jitney.kernels.llvm.gemm_tile import Routine, prefetch
from jitney.kernels.llvm.text import FunctionText

#: Rows of a register, and pairs of k that a row of 64 bytes holds.
STRIP = 16
#: Rows of a tile.
MATRIX_ROWS = 2 * STRIP
_A, _B = 4, 6  # the first registers of A and of B; those before hold sums


@dataclass(frozen=True)
class MatrixTile:
    """``strips`` (1 or 2) registers of rows by ``vectors`` of 16 columns; ``rest``: pairs of k that
    whole registers leave; ``continued``: ``out`` holds the sums of steps before."""

    strips: int
    vectors: int
    rest: int = 0
    continued: bool = False

    @property
    def name(self) -> str:
        """The function's name, unique to its content."""
        flags = "_continued" * self.continued
        return f"jitney_matrix_tile_{self.strips}x{self.vectors}_{self.rest}{flags}"


@lru_cache(maxsize=256)
def matrix_routine(tile: MatrixTile) -> Routine:
    """``void @name(ptr a, i64 a_pitch, i64 rows, ptr b, i64 b_step, i64 k, ptr out, i64 out_step,
    ptr next, i64 next_step)``: ``out[r, :] = sum_k a[r, k] * b[k, :]`` for the ``rows`` that there
    are, bfloat16 pairs into float32.

    ``a_pitch``: bytes from one row of A, whose pairs are contiguous, to the next; ``b_step``: from
    one pair of B's to the next; ``k``: whole registers of 16 pairs, without the rest. One line of
    ``next + i * next_step`` is prefetched for every pair.
    """
    f = FunctionText(
        tile.name,
        ("ptr %a", "i64 %a_pitch", "i64 %rows", "ptr %b", "i64 %b_step", "i64 %k", "ptr %out")
        + ("i64 %out_step", "ptr %next", "i64 %next_step"),
    )
    starts = _strips(f, tile, "%a", "%a_pitch")
    _configure(f, tile, STRIP)
    for first in range(0, tile.vectors, 2):
        columns = range(first, min(first + 2, tile.vectors))
        if tile.continued:
            _move_sums(f, tile, columns, "tileloadd64")
        else:
            for register in _sums(tile, columns):
                _do(f, "tilezero", f"i8 {register}")
        with f.loop("0", "%k") as step:
            _multiply(f, tile, starts, columns, step.index)
            if first == 0:
                _prefetch_lines(f, step.index)
        _move_sums(f, tile, columns, "tilestored64")
    if tile.rest:
        _add_rest(f, tile, starts)
    _do(f, "tilerelease")
    return Routine(tile.name, frozenset({f.finish(linkage="internal"), *f.declarations}))


def _add_rest(f: FunctionText, tile: MatrixTile, starts: list[str]) -> None:
    """Adds the products of the last pairs, too few for whole registers, to ``out``."""
    _configure(f, tile, tile.rest)
    for first in range(0, tile.vectors, 2):
        columns = range(first, min(first + 2, tile.vectors))
        _move_sums(f, tile, columns, "tileloadd64")
        _multiply(f, tile, starts, columns, "%k")
        _move_sums(f, tile, columns, "tilestored64")


def _do(f: FunctionText, instruction: str, *arguments: str) -> None:
    callee = f"llvm.x86.{instruction}"
    kinds = ", ".join(a.split(" ")[0] for a in arguments)
    f.declare(f"declare void @{callee}({kinds})")
    f.do(f"call void @{callee}({', '.join(arguments)})")


def _configure(f: FunctionText, tile: MatrixTile, pairs: int) -> None:
    """Gives the registers their shapes: sums and A have the rows that there are, B ``pairs``."""
    table = f.allocate(64)

    def put(kind: str, value: str, byte: int) -> None:
        at = f.pure(f"getelementptr i8, ptr {table}, i64 {byte}")
        f.do(f"store {kind} {value}, ptr {at}, align 1")

    for byte in range(0, 64, 8):
        put("i64", "0", byte)
    put("i8", "1", 0)  # the palette of eight registers
    heights = _heights(f, tile)
    for register in range(8):
        by_strip = heights[(register // 2 if register < _A else register - _A) % tile.strips]
        rows = by_strip if register < _B else str(pairs)
        bytes_of_row = 4 * pairs if _A <= register < _B else 64
        put("i16", str(bytes_of_row), 16 + 2 * register)
        put("i8", rows, 48 + register)
    _do(f, "ldtilecfg", f"ptr {table}")


def _heights(f: FunctionText, tile: MatrixTile) -> list[str]:
    """Rows of each strip, as bytes. A second one has a row even where the first holds them all:
    no register may have none."""
    first = f.smaller("%rows", str(STRIP))
    counts = [first]
    if tile.strips == 2:
        counts.append(f.larger(f.pure(f"sub i64 %rows, {STRIP}"), "1"))
    return [f.pure(f"trunc i64 {count} to i8") for count in counts]


def _strips(f: FunctionText, tile: MatrixTile, start: str, pitch: str) -> list[str]:
    """Where the rows of each strip begin; a second one without rows of its own reads the first."""
    if tile.strips == 1:
        return [start]
    moved = f.pure(f"mul i64 {pitch}, {STRIP}")
    some = f.pure(f"icmp sgt i64 %rows, {STRIP}")
    moved = f.pure(f"select i1 {some}, i64 {moved}, i64 0")
    return [start, f.pure(f"getelementptr i8, ptr {start}, i64 {moved}")]


def _sums(tile: MatrixTile, columns: Sequence[int]) -> list[int]:
    """The registers that hold sums of ``columns`` (one or two vectors)."""
    return [2 * strip + i for strip in range(tile.strips) for i in range(len(columns))]


def _multiply(
    f: FunctionText, tile: MatrixTile, starts: list[str], columns: Sequence[int], step: str
) -> None:
    """Adds the products of registers number ``step`` of k to the sums of ``columns``."""
    along_a = f.pure(f"mul i64 {step}, 64")
    along_b = f.pure(f"mul i64 {step}, {f.pure(f'mul i64 %b_step, {STRIP}')}")
    row = f.pure(f"getelementptr i8, ptr %b, i64 {along_b}")
    for i, vector in enumerate(columns):
        at = f.pure(f"getelementptr i8, ptr {row}, i64 {64 * vector}")
        _do(f, "tileloadd64", f"i8 {_B + i}", f"ptr {at}", "i64 %b_step")
    for strip, start in enumerate(starts):
        at = f.pure(f"getelementptr i8, ptr {start}, i64 {along_a}")
        _do(f, "tileloadd64", f"i8 {_A + strip}", f"ptr {at}", "i64 %a_pitch")
        for i in range(len(columns)):
            _do(f, "tdpbf16ps", f"i8 {2 * strip + i}", f"i8 {_A + strip}", f"i8 {_B + i}")


def _move_sums(f: FunctionText, tile: MatrixTile, columns: Sequence[int], how: str) -> None:
    """Stores the sums of ``columns`` to ``out``, or loads them from there."""
    for strip in range(tile.strips):
        # A second strip without rows has a place of its own: ``out`` has room for every row.
        down = f.pure(f"mul i64 %out_step, {STRIP * strip}")
        line = f.pure(f"getelementptr i8, ptr %out, i64 {down}")
        for i, vector in enumerate(columns):
            at = f.pure(f"getelementptr i8, ptr {line}, i64 {64 * vector}")
            _do(f, how, f"i8 {2 * strip + i}", f"ptr {at}", "i64 %out_step")


def _prefetch_lines(f: FunctionText, step: str) -> None:
    first = f.pure(f"mul i64 {step}, {STRIP}")
    for i in range(STRIP):
        pair = f.pure(f"add i64 {first}, {i}")
        moved = f.pure(f"mul i64 {pair}, %next_step")
        prefetch(f, f.pure(f"getelementptr i8, ptr %next, i64 {moved}"))
