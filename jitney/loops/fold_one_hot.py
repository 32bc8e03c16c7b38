"""Sums in which only one position contributes become the value at that position.

The gradient of a negative log likelihood is zero except at each target's class; the gradient of the
softmax sums it over all classes. ``sum over c of where(c == t, v, 0)`` is ``v`` where ``t`` is
among the classes, so the row need not be read.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from jitney.loops import ir, visit
from jitney.loops.index import Axis, index
from jitney.loops.masked_ranges import conjuncts


def fold_one_hot(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with such sums as values."""
    nodes = [_folded(n) if isinstance(n, ir.LoopNest) else n for n in program.nodes]
    return replace(program, nodes=tuple(nodes))


def _folded(nest: ir.LoopNest) -> ir.LoopNest:
    body: list[ir.Stmt] = []
    for stmt in nest.body:
        values = _values(stmt) if isinstance(stmt, ir.Reduce) else None
        if values is None:
            body.append(stmt)
        else:
            body.extend(values)
    return nest if tuple(body) == nest.body else replace(nest, body=tuple(body))


def _values(stmt: ir.Reduce) -> list[ir.Stmt] | None:
    """The results as Lets; None unless each is such a sum and the row is not needed otherwise."""
    if len(stmt.axes) != 1 or not all(isinstance(s, ir.Let) for s in stmt.body):
        return None
    inner = {s.name: s.value for s in stmt.body if isinstance(s, ir.Let)}
    lets: list[ir.Stmt] = []
    for result in stmt.results:
        value = _one_hot(_written_out(result.value, inner), stmt.axes[0])
        if result.op != "sum" or value is None:
            return None
        let = ir.Let(result.names[0], value)
        if visit.used_names((let,)) & inner.keys():  # inside an index
            return None
        lets.append(let)
    return lets


def _written_out(expr: ir.Expr, inner: dict[str, ir.Expr]) -> ir.Expr:
    def leaf(e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Ref) and e.name in inner:
            return _written_out(inner[e.name], inner)
        return e

    return visit.map_expr(expr, leaf, {})


def _one_hot(value: ir.Expr, axis: Axis) -> ir.Expr | None:
    """The one value that counts, as an expression without ``axis``."""
    if not isinstance(value, ir.Op) or value.op != "where":
        return None
    condition, chosen, rest = value.args
    if not isinstance(rest, ir.Const) or rest.value != 0 or _varies(chosen, axis):
        return None
    wanted: ir.Expr | None = None
    kept: list[ir.Expr] = []
    for part in conjuncts(condition):
        target = _compared(part, axis)
        if target is not None and wanted is None:
            wanted = target
        elif _varies(part, axis):
            return None
        else:
            kept.append(part)
    if wanted is None:
        return None
    last = ir.IndexValue(axis.extent - 1, wanted.dtype)  # the extent itself may not fit the dtype
    kept.append(ir.Op("ge", (wanted, ir.Const(0, wanted.dtype)), torch.bool))
    kept.append(ir.Op("le", (wanted, last), torch.bool))
    condition = kept[0]
    for part in kept[1:]:
        condition = ir.Op("and", (condition, part), torch.bool)
    return ir.Op("where", (condition, chosen, rest), value.dtype)


def _compared(part: ir.Expr, axis: Axis) -> ir.Expr | None:
    """What the axis' position is compared with, if ``part`` is that comparison."""
    if not isinstance(part, ir.Op) or part.op != "eq":
        return None
    for position, other in (part.args, part.args[::-1]):
        if isinstance(position, ir.IndexValue) and position.index == index(axis):
            integer = not other.dtype.is_floating_point and other.dtype != torch.bool
            return other if integer and not _varies(other, axis) else None
    return None


def _varies(expr: ir.Expr, axis: Axis) -> bool:
    return any(
        axis in e.index.atoms()
        for e in visit.expr_nodes([expr])
        if isinstance(e, ir.Load | ir.IndexValue)
    )
