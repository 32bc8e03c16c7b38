"""Linear interpolation that makes rows longer: first between rows, whole vectors at a time, then
along each row. Neighbours and weights along a row are the same for every row, and are looked up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Expr, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import add, cast, compute_dtype, const, mul, sub
from jitney.loops.lowerings.strided import StridedTensor


def lies_in_rows(b: Builder, x: StridedTensor, out: StridedTensor) -> bool:
    """Whether rows of both lie side by side in memory. An element is then made of two, not of two
    for every dimension, if the result's rows are longer."""
    dense = x.strides[-1] == index(1) and out.strides[-1] == index(1)
    return b.target.kind == "cpu" and dense and x.shape[-1].const > 1


def by_rows(
    b: Builder,
    x: StridedTensor,
    out: StridedTensor,
    between: Callable[[Position, Index], tuple[list[Stmt], Expr]],
    source: torch.Tensor,
) -> StridedTensor:
    """Fills ``out``. ``between``: for a position of the result and a place in a row of x,
    statements and the value there between x's rows. ``source``: where in a row of x, fractions
    included, each element of a row of the result lies."""
    acc = compute_dtype(x.dtype)
    axes, position = b.axes(out.shape, strides=out.strides)
    (inner,), (place,) = b.axes((x.shape[-1],), "s")
    row = b.allocate_as((*out.shape[:-1], x.shape[-1]), acc)
    lets, value = between(position, place)
    made = b.loop((inner,), (Store(row.buffer, row.at((*position[:-1], place)), value),))
    below = source.floor().clamp(max=x.shape[-1].const - 1)
    above = (below + 1).clamp(max=x.shape[-1].const - 1)
    far = _table(b, (source - below).clamp(max=1)).load(position[-1:])
    sides: list[Expr] = []
    looked_up: list[Stmt] = []
    for side in (below, above):
        named, at = b.let_place("at", _table(b, side.long()).load(position[-1:]))
        looked_up.append(named)
        sides.append(row.load((*position[:-1], at)))
    named, weight = b.let("far", far)
    looked_up.append(named)
    total = add(mul(sides[0], sub(const(1, acc), weight)), mul(sides[1], weight))
    stored = Store(out.buffer, out.at(position), cast(total, out.dtype))
    (along,) = (a for a in axes if index(a) == position[-1])
    outer = tuple(a for a in axes if a is not along)
    b.emit(outer, (*lets, *made, *b.loop((along,), (*looked_up, stored))))
    return out


def _table(b: Builder, values: torch.Tensor) -> StridedTensor:
    """A constant of the program."""
    table = b.add_buffer(b.node.name, "constant", values)
    b.constants[table.buffer] = values
    return table
