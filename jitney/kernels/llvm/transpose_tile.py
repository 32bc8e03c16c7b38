"""Transposing accesses through registers and an L1 tile: rows are loaded whole, never gathered.

A load that runs with unit stride along a nest axis other than the one over lanes (the *tile
axis*) is read as ``lanes`` short rows along that axis, transposed in registers, and left on the
stack; the body then loops over the tile axis and finds each vector there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitney.kernels.llvm.conversions import shuffle
from jitney.kernels.llvm.library_math import concatenate
from jitney.kernels.llvm.ssa import Ssa
from jitney.kernels.llvm.text import FunctionText
from jitney.loops import visit
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import Expr, Load, Loop, Reduce, Ref, Stmt

#: Lanes a tile is built for, at most.
MOST_LANES = 32
_ONE = index(1)
_PAGE = 4096
_MOST_ROWS, _FEWEST_ROWS = 1024, 256  # rows read again before others come
_MOST_UNROLLED = 256  # expressions of a body written out for each element of a row


@dataclass(frozen=True)
class TiledBody:
    """A body whose transposing loads are ``Ref(names[k])`` for ``loads[k]``."""

    axis: Axis
    loads: tuple[Load, ...]
    names: tuple[str, ...]
    body: tuple[Stmt, ...]


def transposing_loads(body: Sequence[Stmt], vector: Axis, tile: Axis) -> tuple[Load, ...]:
    """The loads that go through a tile over ``tile`` when ``vector`` is spread over lanes."""
    if any(isinstance(s, Reduce | Loop) for s in body):
        return ()
    written = {s.buffer for s in visit.stores(body)}
    return tuple(
        e
        for e in visit.loads(body)
        if e.mask is None and e.buffer not in written and _transposes(e.index, vector, tile)
    )


def _transposes(position: Index, vector: Axis, tile: Axis) -> bool:
    across, along = position.coefficient(vector), position.coefficient(tile)
    if across is None or along != _ONE or any(isinstance(a, Value) for a in position.atoms()):
        return False
    return across not in (index(0), _ONE)


def best_tile(body: Sequence[Stmt], vector: Axis, axes: Sequence[Axis]) -> TiledBody | None:
    """The tile axis that serves most loads, or None where nothing transposes."""
    others = [a for a in axes if a != vector and not (a.extent.is_const and a.extent.const < 2)]
    found = [(a, transposing_loads(body, vector, a)) for a in others]
    axis, loads = max(found, key=lambda pair: len(pair[1]), default=(None, ()))
    if axis is None or not loads:
        return None
    names = {id(e): f"tile {k}" for k, e in enumerate(loads)}

    def leaf(expr: Expr) -> Expr:
        return Ref(names[id(expr)], expr.dtype) if id(expr) in names else expr

    rewriting = _Rewriting(leaf)
    return TiledBody(axis, loads, tuple(names.values()), rewriting.block(tuple(body)))


class _Rewriting(visit.Renaming):
    """Replaces expressions by ``leaf`` throughout statements."""

    def __init__(self, leaf: visit.Rewrite) -> None:
        super().__init__({})
        self._replace = leaf

    def _leaf(self, expr: Expr) -> Expr:
        return self._replace(expr)


def tile_width(axis: Axis, lanes: int) -> int:
    """Elements of a row of the tile: as many as lanes, or a power of two the axis needs."""
    if axis.extent.is_const:
        return max(2, min(lanes, 1 << (axis.extent.const - 1).bit_length()))
    return lanes


def rows_at_hand(tile: TiledBody, vector: Axis) -> int:
    """Rows that a tile may go over again and again: their pages stay in the TLB, in whose sets
    the pages of rows a power of two apart crowd."""
    strides = [load.index.coefficient(vector) for load in tile.loads]
    apart = max(
        (s.hint() if s is not None else 0) * load.dtype.itemsize
        for s, load in zip(strides, tile.loads, strict=True)
    )
    pages, rest = divmod(int(apart), _PAGE)
    crowded = pages & -pages if pages and not rest else 1
    return max(_FEWEST_ROWS, _MOST_ROWS // crowded)


def stays_in_registers(tile: TiledBody, width: int) -> bool:
    """Whether the body runs on a transposed tile without storing it: it is short, so that a copy
    of it for each of the ``width`` elements of a row stays small code."""
    weight = len(list(visit.body_exprs(tile.body)))
    return len(tile.loads) == 1 and width * weight <= _MOST_UNROLLED


def transpose(text: FunctionText, rows: Sequence[Ssa]) -> list[Ssa]:
    """``out[t][k] = rows[k][t]`` in registers."""
    if rows[0].lanes == len(rows):
        return _transpose_square(text, list(rows))
    return [_column(text, rows, t) for t in range(rows[0].lanes)]


def _transpose_square(text: FunctionText, rows: list[Ssa]) -> list[Ssa]:
    """Exchanges off-diagonal blocks of 1, 2, 4, … elements."""
    count, block = len(rows), 1
    while block < count:
        after = list(rows)
        low = [j if not j & block else count + j - block for j in range(count)]
        high = [j + block if not j & block else count + j for j in range(count)]
        for i in range(count):
            if not i & block:
                after[i] = shuffle(text, rows[i], rows[i + block], low)
                after[i + block] = shuffle(text, rows[i], rows[i + block], high)
        rows, block = after, block * 2
    return rows


def _column(text: FunctionText, rows: Sequence[Ssa], t: int) -> Ssa:
    """Element ``t`` of every row, as one vector, by a tree of two-source shuffles."""
    width = rows[0].lanes
    parts = [
        shuffle(text, a, b, [t, width + t]) for a, b in zip(rows[::2], rows[1::2], strict=True)
    ]
    return concatenate(text, parts)
