"""Epilogues of products as statements of loop nests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jitney.loops.index import Axis, index
from jitney.loops.ir import Expr, Let, Ref, Stmt, Store
from jitney.loops.visit import Renaming, map_expr


def with_accumulator(stmt: Stmt, value: Expr) -> Stmt:
    """An epilogue statement with ``value`` in place of the accumulator."""
    return map_stmt(stmt, lambda e: value if isinstance(e, Ref) and e.name == "acc" else e)


def map_stmt(stmt: Stmt, leaf: Callable[[Expr], Expr]) -> Stmt:
    """A Let or a Store with ``leaf`` applied to every expression in it, bottom-up."""
    memo: dict[int, Expr] = {}
    if isinstance(stmt, Let):
        return replace(stmt, value=map_expr(stmt.value, leaf, memo))
    if isinstance(stmt, Store):
        mask = None if stmt.mask is None else map_expr(stmt.mask, leaf, memo)
        return replace(stmt, value=map_expr(stmt.value, leaf, memo), mask=mask)
    raise ValueError("an epilogue holds Lets and Stores only")


def wide_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Axes with more than one point."""
    return tuple(a for a in axes if a.extent != index(1))


def without_units(body: tuple[Stmt, ...], axes: tuple[Axis, ...]) -> tuple[Stmt, ...]:
    """Axes of extent one are at their only point, 0."""
    return Renaming({a: index(0) for a in axes if a.extent == index(1)}).block(body)
