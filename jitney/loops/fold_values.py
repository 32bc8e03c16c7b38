"""Expressions that are known: constants folded, comparisons of positions decided by their ranges.

Runs before fusion, so that a position that turns out affine (``arange`` used as an index) makes a
load affine too: ``Let(p, i64(i0))`` disappears and ``Value(p)`` becomes ``i0``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import torch

from jitney.loops import ir, visit
from jitney.loops.index import Index, Value, index

_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
_WIDEST = 1 << 62


def fold_values(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with known subexpressions replaced by what they are."""
    nodes: list[ir.Node] = []
    for node in program.nodes:
        if isinstance(node, ir.LoopNest):
            body = fold_block(node.body)
            nodes.append(node if body is node.body else replace(node, body=body))
        elif isinstance(node, ir.Gemm):
            body = fold_block(node.epilogue)
            nodes.append(node if body is node.epilogue else replace(node, epilogue=body))
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes))


def fold_block(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """A block folded; Lets that became plain positions or copies are substituted away."""
    for _ in range(8):
        memo: dict[int, ir.Expr] = {}
        folded = tuple(visit.map_stmt(s, fold, memo) for s in body)
        known = _plain_lets(folded)
        if not known:
            return folded if _changed(folded, body) else body
        body = _substituted(folded, known)
    return body


def _changed(new: tuple[ir.Stmt, ...], old: tuple[ir.Stmt, ...]) -> bool:
    return any(a is not b for a, b in zip(new, old, strict=True))


def _plain_lets(body: tuple[ir.Stmt, ...]) -> dict[str, ir.Expr]:
    """Names bound to a position, a constant or another name; not to a position counted from one of
    these, which is known when that is gone."""
    found: dict[str, ir.Expr] = {}
    for stmt in visit.statements(body):
        if isinstance(stmt, ir.Let) and isinstance(stmt.value, ir.Ref | ir.Const | ir.IndexValue):
            found[stmt.name] = stmt.value
    names = {Value(name) for name in found}

    def waits(value: ir.Expr) -> bool:
        return isinstance(value, ir.IndexValue) and not names.isdisjoint(value.index.atoms())

    return {name: value for name, value in found.items() if not waits(value)}


def _substituted(body: tuple[ir.Stmt, ...], known: dict[str, ir.Expr]) -> tuple[ir.Stmt, ...]:
    def end(expr: ir.Expr) -> ir.Expr:
        while isinstance(expr, ir.Ref) and expr.name in known:
            expr = known[expr.name]
        return expr

    ends = {name: end(value) for name, value in known.items()}
    atoms = {Value(name): i for name, e in ends.items() if (i := _as_index(e)) is not None}
    renaming = visit.Renaming(atoms)

    def leaf(e: ir.Expr) -> ir.Expr:
        return ends.get(e.name, e) if isinstance(e, ir.Ref) else e

    memo: dict[int, ir.Expr] = {}
    moved = tuple(visit.map_stmt(renaming.stmt(s), leaf, memo) for s in body)
    return _without(moved, set(known))


def _without(body: tuple[ir.Stmt, ...], names: set[str]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Let) and stmt.name in names:
            continue
        if isinstance(stmt, ir.Loop | ir.Reduce):
            stmt = replace(stmt, body=_without(stmt.body, names))
        out.append(stmt)
    return tuple(out)


def _as_index(expr: ir.Expr) -> Index | None:
    """An integer expression as an `Index`."""
    if isinstance(expr, ir.Ref) and expr.dtype == torch.int64:
        return index(Value(expr.name))
    return as_position(expr)


def fold(expr: ir.Expr) -> ir.Expr:
    """One node whose operands are folded already."""
    if isinstance(expr, ir.Load):
        return _folded_load(expr)
    if not isinstance(expr, ir.Op):
        return expr
    if expr.op == "where":
        return _folded_where(expr)
    if expr.op in ("and", "or") and expr.dtype == torch.bool:
        return _folded_logic(expr)
    if expr.op == "not" and expr.dtype == torch.bool and isinstance(expr.args[0], ir.Const):
        return ir.Const(not expr.args[0].value, torch.bool)
    if expr.op == "cast" and expr.args[0].dtype == expr.dtype:
        return expr.args[0]
    known = [known_index(a) for a in expr.args]
    if len(known) != 2 or known[0] is None or known[1] is None:
        return expr
    return _folded_integers(expr, known[0], known[1])


def known_index(expr: ir.Expr) -> Index | None:
    """Positions and i64 constants: what the index algebra can compute with exactly."""
    return as_position(expr) if expr.dtype == torch.int64 else None


def as_position(expr: ir.Expr) -> Index | None:
    """A position of any integer dtype, or an integer constant, as an `Index`."""
    if isinstance(expr, ir.IndexValue) and not expr.dtype.is_floating_point:
        return expr.index
    if isinstance(expr, ir.Const) and type(expr.value) is int:
        return index(expr.value)
    return None


def _folded_integers(expr: ir.Op, a: Index, b: Index) -> ir.Expr:
    if expr.op in _EXACT:
        total = a + b if expr.op == "add" else a - b if expr.op == "sub" else a * b
        return _position(total, expr)
    low, high = (a - b).bounds()
    if expr.op in ir.COMPARISONS:
        answer = _decided(expr.op, low, high)
        return expr if answer is None else ir.Const(answer, torch.bool)
    if expr.op in ("max", "min"):
        if low is not None and low >= 0:
            return expr.args[0] if expr.op == "max" else expr.args[1]
        if high is not None and high <= 0:
            return expr.args[1] if expr.op == "max" else expr.args[0]
    if expr.op in ("floordiv", "remainder") and b.is_const and b.const > 0:
        return _position(a // b if expr.op == "floordiv" else a % b, expr)
    return expr


def _position(value: Index, expr: ir.Op) -> ir.Expr:
    """The index as an expression, unless it might leave 64 bits."""
    low, high = value.bounds()
    if low is not None and high is not None and (low < -_WIDEST or high > _WIDEST):
        return expr
    return ir.Const(value.const, expr.dtype) if value.is_const else ir.IndexValue(value, expr.dtype)


def _decided(op: str, low: int | None, high: int | None) -> bool | None:
    """The answer of ``difference op 0`` where its range decides it."""
    above = low is not None and low > 0
    below = high is not None and high < 0
    zero = low == 0 and high == 0
    if op in ("eq", "ne"):
        return (op == "eq") if zero else (op == "ne") if above or below else None
    if op in ("gt", "le"):
        not_above = high is not None and high <= 0
        return (op == "gt") if above else (op == "le") if not_above else None
    not_below = low is not None and low >= 0
    return (op == "lt") if below else (op == "ge") if not_below else None


def _folded_where(expr: ir.Op) -> ir.Expr:
    condition, yes, no = expr.args
    if isinstance(condition, ir.Const):
        return yes if condition.value else no
    inner_yes = _branch(condition, yes, 1)
    inner_no = _branch(condition, no, 2)
    if inner_yes is not yes or inner_no is not no:
        return ir.Op("where", (condition, inner_yes, inner_no), expr.dtype)
    return expr


def _branch(condition: ir.Expr, value: ir.Expr, side: int) -> ir.Expr:
    """``value`` given that it is only used where ``condition`` holds (side 1) or fails (2)."""
    while isinstance(value, ir.Op) and value.op == "where" and value.args[0] == condition:
        value = value.args[side]
    return value


def _folded_logic(expr: ir.Op) -> ir.Expr:
    a, b = expr.args
    neutral = expr.op == "and"
    for one, other in ((a, b), (b, a)):
        if isinstance(one, ir.Const):
            return other if bool(one.value) == neutral else one
    return a if a == b else expr


def _folded_load(expr: ir.Load) -> ir.Expr:
    if isinstance(expr.mask, ir.Const):
        if expr.mask.value:
            return ir.Load(expr.buffer, expr.index, expr.dtype)
        return ir.Const(expr.other, expr.dtype)
    return expr
