"""Cuts an axis where conditions on it change, so that each piece runs without them.

Examples are ``cat`` along the axis, halves of a rotary embedding, padding. In every piece the
comparison is a constant, its ``where`` one side of it, its masked load a plain one. ``min`` and
``max`` of positions are resolved too: what is read at them is contiguous in every piece (a border
that mirrors the image).
"""

from __future__ import annotations

from dataclasses import dataclass

from jitney.loops import visit
from jitney.loops.fold_values import fold, fold_block, known_index
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import COMPARISONS, Expr, Op, Stmt

_MOST_PIECES = 4
_MOST_EXPRS = 300


@dataclass(frozen=True)
class Piece:
    """Values ``low <= i < low + axis.extent`` of the axis that was cut; ``body`` runs over the
    new ``axis`` instead."""

    low: int
    axis: Axis
    body: tuple[Stmt, ...]


def split_ranges(body: tuple[Stmt, ...], axis: Axis) -> tuple[Piece, ...]:
    """The pieces in order; a single one, the body itself, when no condition changes."""
    pieces, split = [Piece(0, axis, body)], True
    while split:
        found = [piece for whole in pieces for piece in _parts(whole)]
        exprs = sum(len(list(visit.body_exprs(piece.body))) for piece in found)
        split = len(pieces) < len(found) <= _MOST_PIECES and exprs <= _MOST_EXPRS
        pieces = found if split else pieces
    return tuple(pieces)


def _parts(whole: Piece) -> list[Piece]:
    """The piece, cut once at each place where what is known now changes. (Within the parts more may
    be known.)"""
    axis = whole.axis
    if not axis.extent.is_const:
        return [whole]
    extent = axis.extent.const
    exprs = visit.body_exprs(whole.body)
    cuts = sorted({c for e in exprs for c in _changes(e, axis) if 0 < c < extent})
    if not cuts:
        return [whole]
    edges = [0, *cuts, extent]
    return [_piece(whole, *ends) for ends in zip(edges, edges[1:], strict=False)]


def _changes(expr: Expr, axis: Axis) -> list[int]:
    """Values of ``axis`` at which a comparison of it with a constant, or the lesser or greater of
    two positions, changes."""
    sides = _compared(expr)
    if sides is None or not isinstance(expr, Op):
        return []
    difference, op = sides[0] - sides[1], expr.op  # compared with 0
    stride = difference.coefficient(axis)
    if stride is None or not stride.is_const or stride.const == 0:
        return []
    rest = difference - index(axis) * stride.const
    if not rest.is_const:
        return []
    step, start = stride.const, rest.const
    if step < 0:
        step, start = -step, -start
        op = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(op, op)
    if op in ("lt", "ge", "min", "max"):  # step * axis + start < 0 ends at ceil(-start / step)
        return [-(start // step)]
    if op in ("le", "gt"):
        return [-start // step + 1]
    return [-start // step, -start // step + 1] if start % step == 0 else []


def _compared(expr: Expr) -> tuple[Index, Index] | None:
    """Both sides of a comparison (or ``min``, ``max``) of integers known as indices."""
    if not isinstance(expr, Op) or expr.op not in (*COMPARISONS, "min", "max"):
        return None
    sides = [known_index(a) for a in expr.args]
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


def _piece(whole: Piece, low: int, high: int) -> Piece:
    inner = Axis(f"{whole.axis.name}_{low}", index(high - low))
    body = _Specialised({whole.axis: index(inner) + low}).block(whole.body)
    return Piece(whole.low + low, inner, fold_block(body))


class _Specialised(visit.Renaming):
    """Renames the axis and folds what its new range decides."""

    def _leaf(self, expr: Expr) -> Expr:
        return fold(super()._leaf(expr))
