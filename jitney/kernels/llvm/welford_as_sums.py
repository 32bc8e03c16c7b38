"""Rewrites welford reductions as two passes of sums, which run at the speed of loads.

The mean first, then the sum of squared distances from it: as exact as the running update, and
without its division in every step; a row is in cache when it is read again.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.errors import CompilerBug
from jitney.loops.index import Index, index
from jitney.loops.ir import (
    Const,
    IndexValue,
    Let,
    Loop,
    LoopNest,
    Op,
    Reduce,
    Reduction,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.visit import repeatable, statements


def welford_as_sums(nest: LoopNest) -> LoopNest:
    """The nest with every (mean, m2, count) computed by sums."""
    if not any(
        isinstance(s, Reduce) and any(r.op == "welford" for r in s.results)
        for s in statements(nest.body)
    ):
        return nest
    return replace(nest, body=_block(nest.body))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            out.append(replace(stmt, body=_block(stmt.body)))
        elif isinstance(stmt, Reduce):
            out.extend(_reduce(replace(stmt, body=_block(stmt.body))))
        else:
            out.append(stmt)
    return tuple(out)


def _reduce(stmt: Reduce) -> list[Stmt]:
    moments = [r for r in stmt.results if r.op == "welford"]
    if not moments:
        return [stmt]
    if not repeatable((stmt,)):
        raise CompilerBug("a variance's second pass reads what its first has changed")
    first = tuple(_total(r) if r.op == "welford" else r for r in stmt.results)
    count: Index = index(1)
    for axis in stmt.axes:
        count = count * axis.extent
    found: list[Stmt] = [replace(stmt, results=first)]
    second = []
    for r in moments:
        mean, m2, number = r.names
        size = IndexValue(count, r.dtype)
        found.append(Let(number, size))
        # An empty row has mean 0, as the running update leaves it.
        some = Op("max", (size, Const(1, r.dtype)), r.dtype)
        found.append(Let(mean, Op("div", (Ref(f"total {mean}", r.dtype), some), r.dtype)))
        away = Op("sub", (r.value, Ref(mean, r.dtype)), r.dtype)
        second.append(Reduction((m2,), "sum", Op("square", (away,), r.dtype), r.dtype))
    again = tuple(s for s in stmt.body if not isinstance(s, Store))
    found.append(Reduce(stmt.axes, again, tuple(second)))
    return found


def _total(r: Reduction) -> Reduction:
    return Reduction((f"total {r.names[0]}",), "sum", r.value, r.dtype)
