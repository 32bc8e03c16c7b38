"""Lays a block of a transposed A out as tiles read it: the rows of a tile side by side, k by k.

In place every step of k reads a few elements of a line of its own, at a pitch that may fall into a
few sets of every cache (docs/decisions/030-transposed-products.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from jitney.kernels.llvm.gemm_tile import Routine
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.kernels.llvm.text import FunctionText

_LINE = 64


@dataclass(frozen=True)
class PackedRows:
    """``out[tile][k][row]``: ``rows`` of a tile by ``k`` steps, elements of ``size`` bytes."""

    size: int
    rows: int
    k: int

    @property
    def step(self) -> int:
        """Bytes from one k to the next."""
        return self.rows * self.size

    @property
    def pitch(self) -> int:
        """Bytes from one tile to the next: whole lines, an odd number of them, so that what one k
        writes to all tiles falls into different sets of a cache."""
        return (-(-self.k * self.step // _LINE) | 1) * _LINE

    def bytes(self, rows: int) -> int:
        """Bytes of a block of ``rows``."""
        return -(-rows // self.rows) * self.pitch


def packed_row(f: PhaseFunction, layout: PackedRows, block: str, row: str) -> str:
    """The pointer to ``row`` of the packed ``block`` (k = 0)."""
    tile = f.text.pure(f"udiv i64 {row}, {layout.rows}")
    within = f.text.pure(f"urem i64 {row}, {layout.rows}")
    return f.offset(f.offset(block, tile, layout.pitch), within, layout.size)


@lru_cache(maxsize=64)
def pack_rows_routine(layout: PackedRows) -> Routine:
    """``void @name(ptr a, i64 a_step, i64 count, ptr out)``: packs ``count`` adjacent columns of
    ``a``, whose rows (the steps of k) lie ``a_step`` bytes apart."""
    name = f"jitney_pack_rows_{layout.size}x{layout.rows}x{layout.k}"
    f = FunctionText(name, ("ptr %a", "i64 %a_step", "i64 %count", "ptr %out"))
    word = f"i{8 * layout.size}"
    rest = f.pure(f"urem i64 %count, {layout.rows}")
    whole = f.pure(f"sub i64 %count, {rest}")
    with f.loop("0", str(layout.k), nonempty=True) as k:
        source = f.emit(f"mul i64 {k.index}, %a_step")
        source = f.emit(f"getelementptr i8, ptr %a, i64 {source}")
        target = f.emit(f"mul i64 {k.index}, {layout.step}")
        target = f.emit(f"getelementptr i8, ptr %out, i64 {target}")

        def move(first: str, last: str, step: int, kind: str) -> None:
            with f.loop(first, last, step=step) as row:
                at = f.emit(f"getelementptr {word}, ptr {source}, i64 {row.index}")
                value = f.emit(f"load {kind}, ptr {at}, align {layout.size}")
                tile = f.emit(f"udiv i64 {row.index}, {layout.rows}")
                within = f.emit(f"urem i64 {row.index}, {layout.rows}")
                tile = f.emit(f"mul i64 {tile}, {layout.pitch}")
                at = f.emit(f"getelementptr i8, ptr {target}, i64 {tile}")
                at = f.emit(f"getelementptr {word}, ptr {at}, i64 {within}")
                f.do(f"store {kind} {value}, ptr {at}, align {layout.size}")

        move("0", whole, layout.rows, f"<{layout.rows} x {word}>")
        move(whole, "%count", 1, word)
    return Routine(name, frozenset({f.finish(linkage="internal"), *f.declarations}))
