"""Keeps expensive values of a row in scratch between the loops that need them.

Softmax needs ``exp(x - max)`` for the sum and again for the quotient: the first loop stores it,
the second loads it from L1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitney.kernels.llvm.nest_cost import op_cycles
from jitney.loops import visit
from jitney.loops.index import Axis
from jitney.loops.ir import Expr, Let, Load, Loop, Op, Reduce, Ref, Stmt, Store
from jitney.loops.points import place_among

#: Cycles of a vector from which loading the value again is cheaper, with its store.
_WORTH = 8
#: Bytes of scratch a row may take: it should stay in L1 or L2.
_MOST_BYTES = 256 << 10
_MOST_EXPRS = 120


@dataclass(frozen=True)
class StashedRows:
    """A body that uses the local buffers ``rows`` (name, byte offset in scratch)."""

    body: tuple[Stmt, ...]
    rows: tuple[tuple[str, int], ...] = ()
    scratch_bytes: int = 0


def stash_rows(body: tuple[Stmt, ...]) -> StashedRows:
    """The body of a row with repeated expensive values stored once."""
    current = StashedRows(body)
    if sum(1 for _ in visit.body_exprs(body)) > _MOST_EXPRS:
        return current
    for position, stmt in enumerate(body):
        if isinstance(stmt, Reduce) and not any(isinstance(s, Reduce | Loop) for s in stmt.body):
            current = _stash(current, position)
    return current


def _stash(current: StashedRows, position: int) -> StashedRows:
    """Stores what the reduction at ``position`` shares with loops after it."""
    first = current.body[position]
    assert isinstance(first, Reduce)
    count = _points(first.axes)
    users = [
        k
        for k in range(position + 1, len(current.body))
        if isinstance(later := current.body[k], Reduce | Loop) and later.axes == first.axes
    ]
    bound = set(visit.bound_names((first,)))
    written = {store.buffer for store in visit.stores(current.body)}
    for expr in _expensive(first):
        if any(load.buffer in written for load in visit.expr_loads([expr])):
            continue
        shared = [k for k in users if expr in set(visit.body_exprs((current.body[k],)))]
        size = -(-count * expr.dtype.itemsize // 64) * 64
        if not shared or _mentions(expr, bound) or current.scratch_bytes + size > _MOST_BYTES:
            continue
        return _rewritten(current, position, shared, expr, size)
    return current


def _points(axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        if not axis.extent.is_const:
            return 1 << 40
        total *= axis.extent.const
    return total


def _expensive(stmt: Reduce) -> list[Expr]:
    """Operations of the reduction that cost more than a load, greatest first."""
    found = [e for e in visit.body_exprs((stmt,)) if isinstance(e, Op)]
    costs = {id(e): sum(op_cycles(x) for x in visit.expr_nodes([e])) for e in found}
    heavy = [e for e in found if any(op_cycles(x) >= _WORTH for x in visit.expr_nodes([e]))]
    return sorted(heavy, key=lambda e: -costs[id(e)])


def _mentions(expr: Expr, names: set[str]) -> bool:
    return any(isinstance(e, Ref) and e.name in names for e in visit.expr_nodes([expr]))


def _rewritten(
    current: StashedRows, position: int, shared: list[int], expr: Expr, size: int
) -> StashedRows:
    row, name = f"row {len(current.rows)}", f"kept {len(current.rows)}"
    first = current.body[position]
    assert isinstance(first, Reduce)
    place = place_among(first.axes)
    body = list(current.body)
    kept = _Replaced(expr, Ref(name, expr.dtype))
    bound, stored = Let(name, expr), Store(row, place, Ref(name, expr.dtype))
    body[position] = replace(
        first,
        body=(bound, *kept.block(first.body), stored),
        results=tuple(replace(r, value=kept.expr(r.value)) for r in first.results),
    )
    loaded = _Replaced(expr, Load(row, place, expr.dtype))
    for k in shared:
        body[k] = loaded.stmt(body[k])
    rows = (*current.rows, (row, current.scratch_bytes))
    return StashedRows(tuple(body), rows, current.scratch_bytes + size)


class _Replaced(visit.Renaming):
    """Puts one expression in another's place."""

    def __init__(self, old: Expr, new: Expr) -> None:
        super().__init__({})
        self._old, self._new = old, new

    def _leaf(self, expr: Expr) -> Expr:
        return self._new if expr == self._old else expr
