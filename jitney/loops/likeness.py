"""Which nests do the same work on other buffers."""

from __future__ import annotations

from collections.abc import Hashable

from jitney.loops.index import Axis, index
from jitney.loops.ir import Const, Expr, IndexValue, Let, Load, LoopNest, Op, Ref, Store
from jitney.loops.visit import Renaming, body_exprs, bound_names


def likeness(nest: LoopNest) -> Hashable | None:
    """Equal for nests that differ only in the names of buffers, axes and values; None for a nest
    with loops inside. (Rows instead of expressions: to compare trees takes a time that grows with
    the paths through what they share.)"""
    flat = [s for s in nest.body if isinstance(s, Let | Store)]
    if len(flat) < len(nest.body):
        return None
    axes = {axis: index(Axis(str(k), axis.extent)) for k, axis in enumerate(nest.axes)}
    names = {name: str(k) for k, name in enumerate(bound_names(flat))}
    body = Renaming(axes, names).block(tuple(flat))
    rows: list[Hashable] = [axis.extent for axis in nest.axes]
    places: dict[int, int] = {}
    buffers: dict[str, int] = {}
    for expr in body_exprs(body):
        rows.append(_row(expr, places, buffers))
        places[id(expr)] = len(places)
    for statement in body:
        if isinstance(statement, Let):
            rows.append((statement.name, places[id(statement.value)]))
        elif isinstance(statement, Store):
            buffer = buffers.setdefault(statement.buffer, len(buffers))
            mask = None if statement.mask is None else places[id(statement.mask)]
            value = places[id(statement.value)]
            rows.append((buffer, statement.index, value, mask, statement.mode))
    return tuple(rows)


def _row(expr: Expr, places: dict[int, int], buffers: dict[str, int]) -> Hashable:
    """An expression whose operands are told by their places."""
    if isinstance(expr, Op):
        return (expr.op, tuple([places[id(arg)] for arg in expr.args]), expr.dtype)
    if isinstance(expr, Load):
        buffer = buffers.setdefault(expr.buffer, len(buffers))
        mask = None if expr.mask is None else places[id(expr.mask)]
        return (buffer, expr.index, expr.dtype, mask, repr(expr.other))
    if isinstance(expr, Const):
        return (repr(expr.value), expr.dtype)
    if isinstance(expr, IndexValue):
        return (expr.index, expr.dtype)
    return (type(expr) is Ref, expr.name, expr.dtype)
