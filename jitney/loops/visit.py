"""Walking and rebuilding the IR: expressions inside statements inside nodes.

Rewrites keep what did not change as the same object, so that identity stays a cheap test. An
expression may share subtrees: each shared one is visited once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from jitney.loops import ir
from jitney.loops.index import Atom, Axis, Index, IndexLike, Value, index

Rewrite = Callable[[ir.Expr], ir.Expr]
_Node = TypeVar("_Node")
_Found = TypeVar("_Found")


def _once(find: Callable[[_Node], _Found]) -> Callable[[_Node], _Found]:
    """Makes ``find`` keep its answer on the node (`ir._HashOnce`): the same nodes are asked again
    and again."""
    name = f"_{find.__name__}"

    @wraps(find)
    def kept(node: _Node) -> _Found:
        facts = node.__dict__
        if name not in facts:
            facts[name] = find(node)
        found: _Found = facts[name]
        return found

    return kept


def expr_nodes(exprs: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Every distinct expression object under ``exprs``, operands before users; those of the last
    expression come first."""
    seen: set[int] = set()
    found: list[ir.Expr] = []
    for expr in reversed(exprs):
        _add_nodes(expr, seen, found)
    return found


def _add_nodes(expr: ir.Expr, seen: set[int], found: list[ir.Expr]) -> None:
    key = id(expr)  # not free: audit hooks hear of it
    if key in seen:
        return
    seen.add(key)
    for operand in operands(expr):
        _add_nodes(operand, seen, found)
    found.append(expr)


def operands(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """The expressions directly under this one."""
    if isinstance(expr, ir.Op):
        return expr.args
    if isinstance(expr, ir.Load) and expr.mask is not None:
        return (expr.mask,)
    return ()


def expr_loads(exprs: Sequence[ir.Expr]) -> tuple[ir.Load, ...]:
    """Every distinct load object under ``exprs``, in the order of `expr_nodes`."""
    return _distinct_loads(reversed(exprs))


def _distinct_loads(exprs: Iterable[ir.Expr]) -> tuple[ir.Load, ...]:
    parts = [part for expr in exprs if (part := _loads_of(expr))]
    if len(parts) < 2:
        return parts[0] if parts else ()
    return tuple({id(load): load for part in parts for load in part}.values())


def _loads_of(expr: ir.Expr) -> tuple[ir.Load, ...]:
    """The loads of one expression."""
    if isinstance(expr, ir.Op):
        return _loads_of_op(expr)
    if isinstance(expr, ir.Load):
        return (expr,) if expr.mask is None else (*_loads_of(expr.mask), expr)
    return ()


@_once
def _loads_of_op(expr: ir.Op) -> tuple[ir.Load, ...]:
    return _distinct_loads(expr.args)


def statements(body: Iterable[ir.Stmt]) -> Iterator[ir.Stmt]:
    """Every statement, outer before inner, in order."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, ir.Loop | ir.Reduce):
            yield from statements(stmt.body)


def stmt_exprs(stmt: ir.Stmt) -> tuple[ir.Expr, ...]:
    """The expressions of the statement itself, not of statements inside it."""
    if isinstance(stmt, ir.Let):
        return (stmt.value,)
    if isinstance(stmt, ir.Store):
        return (stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask)
    if isinstance(stmt, ir.Reduce):
        return tuple(r.value for r in stmt.results)
    return ()


def body_exprs(body: Iterable[ir.Stmt]) -> list[ir.Expr]:
    """Every distinct expression of a block and the blocks inside it."""
    return expr_nodes([e for stmt in statements(body) for e in stmt_exprs(stmt)])


def loads(body: Iterable[ir.Stmt]) -> tuple[ir.Load, ...]:
    """Every distinct load object of a block, in the order of `expr_nodes`."""
    return expr_loads([e for stmt in statements(body) for e in stmt_exprs(stmt)])


def stores(body: Iterable[ir.Stmt]) -> list[ir.Store]:
    """Every store of a block, in order."""
    return [s for s in statements(body) if isinstance(s, ir.Store)]


def views(value: object) -> Iterator[ir.BufferView]:
    """Every buffer view nested in an extern's arguments."""
    if isinstance(value, ir.BufferView):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from views(item)


@_once
def reads(node: ir.Node) -> tuple[str, ...]:
    """Names of the buffers a node may read, in order, once each."""
    return tuple(dict.fromkeys(_reads(node)))


@_once
def writes(node: ir.Node) -> tuple[str, ...]:
    """Names of the buffers a node writes, in order, once each."""
    return tuple(dict.fromkeys(_writes(node)))


def _reads(node: ir.Node) -> list[str]:
    if isinstance(node, ir.Together):
        names = [name for nest in node.nests for name in reads(nest)]
    elif isinstance(node, ir.LoopNest):
        names = [e.buffer for e in loads(node.body)]
        names += [s.buffer for s in stores(node.body) if s.combines]
    elif isinstance(node, ir.Gemm):
        names = [node.b.buffer] if node.a_value is not None else [node.a.buffer, node.b.buffer]
        names += [e.buffer for e in expr_loads([node.a_value] if node.a_value else [])]
        names += [e.buffer for e in loads(node.row_prologue + node.epilogue)]
        names += [s.buffer for s in stores(node.epilogue) if s.combines]
    elif isinstance(node, ir.Attention):
        names = [name for nest in node.before for name in reads(nest)]
        names += [node.q.buffer, node.k.buffer, node.v.buffer]
        names += [node.mask.buffer] if node.mask is not None else []
        names += [e.buffer for e in expr_loads([node.scale])]
    else:
        names = [v.buffer for v in views((node.args, [v for _, v in node.kwargs]))]
    return names


def _writes(node: ir.Node) -> list[str]:
    if isinstance(node, ir.Together):
        names = [name for nest in node.nests for name in writes(nest)]
    elif isinstance(node, ir.LoopNest):
        names = [s.buffer for s in stores(node.body)]
    elif isinstance(node, ir.Gemm):
        names = [s.buffer for s in stores(node.row_prologue + node.epilogue)]
    elif isinstance(node, ir.Attention):
        names = [name for nest in node.before for name in writes(nest)]
        names += [node.out.buffer] + ([node.logsumexp.buffer] if node.logsumexp else [])
    else:
        names = [n for n in node.outputs if n is not None] + list(node.mutates)
    return names


def returned(outputs: Iterable[object]) -> set[str]:
    """The buffers that results of a program lie in."""
    return {out.view.buffer for out in outputs if isinstance(out, ir.Output)}


def apart(first: tuple[ir.Stmt, ...], second: tuple[ir.Stmt, ...]) -> bool:
    """Whether neither block touches a buffer that the other writes."""
    a, b = (ir.LoopNest("", (), body) for body in (first, second))
    touched = {*reads(b), *writes(b)}
    return touched.isdisjoint(writes(a)) and set(writes(b)).isdisjoint(reads(a))


def repeatable(body: tuple[ir.Stmt, ...]) -> bool:
    """Whether a block gives the same again if it runs twice: it reads nothing that it writes."""
    block = ir.LoopNest("", (), body)
    return set(reads(block)).isdisjoint(writes(block))


def map_expr(expr: ir.Expr, leaf: Rewrite, memo: dict[int, ir.Expr]) -> ir.Expr:
    """``expr`` with ``leaf`` applied bottom-up to every node; ``memo`` by object identity.

    The caller keeps the original expressions alive as long as ``memo``.
    """
    key = id(expr)
    found = memo.get(key)
    if found is not None:
        return found
    result = expr
    if isinstance(expr, ir.Op):
        args = tuple([map_expr(a, leaf, memo) for a in expr.args])
        if any(map(operator.is_not, args, expr.args)):
            result = ir.Op(expr.op, args, expr.dtype)
    elif isinstance(expr, ir.Load) and expr.mask is not None:
        mask = map_expr(expr.mask, leaf, memo)
        if mask is not expr.mask:
            result = replace(expr, mask=mask)
    result = leaf(result)
    memo[key] = result
    return result


class Renaming:
    """Axes, integers inside indices and bound names replaced throughout statements and expressions.

    ``atoms`` are replaced in indices alone, ``names`` also where they are bound and read."""

    def __init__(
        self,
        atoms: Mapping[Axis, Index] | Mapping[Value, Index] | Mapping[Atom, Index],
        names: dict[str, str] | None = None,
    ) -> None:
        self.names = names or {}
        self.atoms: dict[Any, IndexLike] = {x: y for x, y in atoms.items() if y != index(x)}
        self.atoms.update({Value(old): index(Value(new)) for old, new in self.names.items()})
        self._indices: dict[Index, Index] = {}  # few distinct ones among very many loads
        self._memo: dict[int, ir.Expr] = {}
        self._alive: list[ir.Expr] = []

    def index(self, value: Index) -> Index:
        """The index with atoms replaced."""
        if not value.terms or not self.atoms:
            return value
        found = self._indices.get(value)
        if found is None:
            found = self._indices[value] = value.substitute(self.atoms)
        return found

    def expr(self, expr: ir.Expr) -> ir.Expr:
        """The expression with atoms and names replaced."""
        self._alive.append(expr)
        return map_expr(expr, self._leaf, self._memo)

    def _leaf(self, expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load):
            moved = self.index(expr.index)
            if moved == expr.index:
                return expr
            return ir.Load(expr.buffer, moved, expr.dtype, expr.mask, expr.other)
        if isinstance(expr, ir.Ref) and expr.name in self.names:
            return ir.Ref(self.names[expr.name], expr.dtype)
        if isinstance(expr, ir.IndexValue):
            return ir.IndexValue(self.index(expr.index), expr.dtype)
        return expr

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """The statements with atoms and names replaced; axes of inner loops stay."""
        return tuple(self.stmt(s) for s in body)

    def stmt(self, stmt: ir.Stmt) -> ir.Stmt:
        """One statement with atoms and names replaced."""
        if isinstance(stmt, ir.Let):
            return ir.Let(self.names.get(stmt.name, stmt.name), self.expr(stmt.value))
        if isinstance(stmt, ir.Store):
            mask = None if stmt.mask is None else self.expr(stmt.mask)
            where, value = self.index(stmt.index), self.expr(stmt.value)
            return ir.Store(stmt.buffer, where, value, mask, stmt.mode)
        if isinstance(stmt, ir.Loop):
            return ir.Loop(stmt.axes, self.block(stmt.body))
        body = self.block(stmt.body)
        results = tuple(
            ir.Reduction(
                tuple(self.names.get(n, n) for n in r.names), r.op, self.expr(r.value), r.dtype
            )
            for r in stmt.results
        )
        return ir.Reduce(stmt.axes, body, results)


def bound_names(body: Iterable[ir.Stmt]) -> list[str]:
    """Every name a `Let` or a `Reduce` binds in a block and the blocks inside it."""
    names: list[str] = []
    for stmt in statements(body):
        if isinstance(stmt, ir.Let):
            names.append(stmt.name)
        elif isinstance(stmt, ir.Reduce):
            names.extend(n for r in stmt.results for n in r.names)
    return names


def used_names(body: tuple[ir.Stmt, ...]) -> set[str]:
    """Names a block uses, in expressions and inside indices."""
    names: set[str] = set()
    for stmt in statements(body):
        names.update(*map(_names_of, stmt_exprs(stmt)))
        if isinstance(stmt, ir.Store):
            names.update(_bound_in(stmt.index))
    return names


def _names_of(expr: ir.Expr) -> frozenset[str]:
    """The names of one expression."""
    if isinstance(expr, ir.Op):
        return _names_of_op(expr)
    if isinstance(expr, ir.Ref):
        return frozenset((expr.name,))
    if isinstance(expr, ir.IndexValue):
        return _bound_in(expr.index)
    if isinstance(expr, ir.Load):
        under_mask = frozenset[str]() if expr.mask is None else _names_of(expr.mask)
        return _bound_in(expr.index) | under_mask
    return frozenset()


@_once
def _names_of_op(expr: ir.Op) -> frozenset[str]:
    return frozenset[str]().union(*map(_names_of, expr.args))


def _bound_in(where: Index) -> frozenset[str]:
    return frozenset(a.name for a in where.atoms() if isinstance(a, Value))


@_once
def accumulates(node: ir.Node) -> bool:
    """Whether a nest holds a reduction that runs along a loop, whose axis must stay as it is."""
    if not isinstance(node, ir.LoopNest):
        return False
    return any(isinstance(e, ir.Op) and e.op in ir.RUNNING for e in body_exprs(node.body))


def inner_axes(body: Iterable[ir.Stmt]) -> list[Axis]:
    """Every axis a `Loop` or a `Reduce` of a block runs over."""
    return [a for s in statements(body) if isinstance(s, ir.Loop | ir.Reduce) for a in s.axes]


def map_stmt(stmt: ir.Stmt, leaf: Rewrite, memo: dict[int, ir.Expr] | None = None) -> ir.Stmt:
    """The statement, and those inside it, with ``leaf`` applied to every expression."""
    memo = {} if memo is None else memo
    if isinstance(stmt, ir.Let):
        return ir.Let(stmt.name, map_expr(stmt.value, leaf, memo))
    if isinstance(stmt, ir.Store):
        mask = None if stmt.mask is None else map_expr(stmt.mask, leaf, memo)
        return ir.Store(stmt.buffer, stmt.index, map_expr(stmt.value, leaf, memo), mask, stmt.mode)
    body = tuple(map_stmt(s, leaf, memo) for s in stmt.body)
    if isinstance(stmt, ir.Loop):
        return ir.Loop(stmt.axes, body)
    results = tuple(replace(r, value=map_expr(r.value, leaf, memo)) for r in stmt.results)
    return ir.Reduce(stmt.axes, body, results)


def rename_axes(
    body: tuple[ir.Stmt, ...], outer: dict[Axis, Index], inner: dict[Axis, Axis]
) -> tuple[ir.Stmt, ...]:
    """A block with outer axes replaced by expressions and inner loops' axes by other axes."""
    moved = {**outer, **{old: Index((((new,), 1),), 0) for old, new in inner.items()}}
    renaming = Renaming(moved)
    renamed = renaming.block(body) if renaming.atoms else body
    return with_inner_axes(renamed, {x: (y,) for x, y in inner.items()}) if inner else renamed


def with_inner_axes(
    body: tuple[ir.Stmt, ...], changes: Mapping[Axis, tuple[Axis, ...]]
) -> tuple[ir.Stmt, ...]:
    """A block whose inner loops run over other axes in the place of some; indices stay."""
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Loop | ir.Reduce):
            axes = with_axes(stmt.axes, changes)
            stmt = replace(stmt, axes=axes, body=with_inner_axes(stmt.body, changes))
        out.append(stmt)
    return tuple(out)


def with_axes(axes: tuple[Axis, ...], changes: Mapping[Axis, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Axes with others in the place of some."""
    return tuple(new for axis in axes for new in changes.get(axis, (axis,)))
