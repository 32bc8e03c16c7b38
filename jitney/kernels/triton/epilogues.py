"""Epilogues of products as statements of loop nests."""

from __future__ import annotations

from jitney.loops.index import Axis, index
from jitney.loops.ir import Expr, Ref, Stmt
from jitney.loops.visit import Renaming, map_stmt


def with_accumulator(stmt: Stmt, value: Expr) -> Stmt:
    """An epilogue statement with ``value`` in place of the accumulator."""
    return map_stmt(stmt, lambda e: value if isinstance(e, Ref) and e.name == "acc" else e)


def wide_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Axes with more than one point."""
    return tuple(a for a in axes if a.extent != index(1))


def without_units(body: tuple[Stmt, ...], axes: tuple[Axis, ...]) -> tuple[Stmt, ...]:
    """The statement with axes of extent one replaced by their only point, 0."""
    return Renaming({a: index(0) for a in axes if a.extent == index(1)}).block(body)
