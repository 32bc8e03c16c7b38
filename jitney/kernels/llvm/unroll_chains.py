"""Long chains of operations are computed at several points at once, which share much of what they
read.

The elements of a window are added up one after the other: each addition waits for the one before,
and the next point reads the same filter again. So points along an axis outside of the lanes are
computed together, link by link, and what they share is read once. No order of additions changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jitney.loops import visit
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Expr, Let, Loop, LoopNest, Op, Reduce, Ref, Stmt, Store

#: Links, and loads, from which a chain is long.
_LONG = 8
#: How many points may run at once, the best first.
_COUNTS = (7, 4, 5, 3, 2)
#: How many vectors at once each have a register of their own.
_VECTORS = 8
#: The share of their loads that must be left.
_LEFT = 0.7


def has_long_chains(body: Sequence[Stmt]) -> bool:
    """Whether there may be long chains. Few nests have such expressions."""
    return any(_is_long(e) for s in visit.statements(body) for e in visit.stmt_exprs(s))


#: The axis over lanes and how many of its vectors run at once.
Lanes = tuple[Axis | None, int]


def unroll_chains(
    nest: LoopNest, lanes: Lanes, lanes_of: Callable[[Loop | Reduce], Lanes]
) -> LoopNest:
    """The nest with points of long chains put together. ``lanes``: those of the nest itself, if an
    axis of its own is over lanes; ``lanes_of``: those of a loop inside."""
    if lanes[0] is not None:
        axes, body = _together(nest.axes, nest.body, lanes)
        return nest if body is nest.body else replace(nest, axes=axes, body=body)
    body = tuple(_loop(s, lanes_of(s)) if isinstance(s, Loop) else s for s in nest.body)
    same = all(a is b for a, b in zip(body, nest.body, strict=True))
    return nest if same else replace(nest, body=body)


def _loop(loop: Loop, lanes: Lanes) -> Loop:
    if lanes[0] is None:
        return loop
    axes, body = _together(loop.axes, loop.body, lanes)
    return loop if body is loop.body else Loop(axes, body)


def _together(
    axes: tuple[Axis, ...], body: tuple[Stmt, ...], lanes: Lanes
) -> tuple[tuple[Axis, ...], tuple[Stmt, ...]]:
    """The axes and the body with points of one axis put together, if that pays."""
    linked = _links(body)
    found = _best_axis([a for a in axes if a != lanes[0]], body, lanes[1]) if linked else None
    if found is None:
        return axes, body
    axis, count = found
    outer = Axis(f"{axis.name}_by_{count}", axis.extent // count)
    names = visit.bound_names(linked)
    points = [
        visit.Renaming(
            {axis: index(outer) * count + k}, {name: f"{name} at {k}" for name in names}
        ).block(linked)
        for k in range(count)
    ]
    mixed = tuple(stmt for same in zip(*points, strict=True) for stmt in same)
    return tuple(outer if a == axis else a for a in axes), mixed


def _best_axis(
    axes: Sequence[Axis], body: tuple[Stmt, ...], vectors: int
) -> tuple[Axis, int] | None:
    """The axis along which neighbouring points share most, and how many of its points to put
    together."""
    counts = [n for n in _COUNTS if n * vectors <= _VECTORS]
    best: tuple[Axis, int] | None = None
    least = _LEFT
    for axis in axes:
        count = next((n for n in counts if (axis.extent % n) == index(0)), 1)
        left = _share_left(body, axis, count)
        if left <= least:
            best, least = (axis, count), left
    return best


def _share_left(body: Sequence[Stmt], axis: Axis, count: int) -> float:
    """The loads of ``count`` points together, as a share of their loads when each runs by
    itself."""
    places = {(e.buffer, e.index) for e in visit.loads(body)}
    every: set[tuple[str, Index]] = set()
    for name, place in places:
        step = place.coefficient(axis)
        for k in range(count):
            moved = place.substitute({axis: index(axis) + k}) if step is None else place + step * k
            every.add((name, moved))
    return len(every) / (len(places) * count)


# ---------------------------------------------------------------- chains


def _links(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body with each link of its long chains by a name of its own; nothing if there are none,
    or iterations are not to be told apart."""
    if not all(isinstance(s, Let | Store) for s in body) or not visit.repeatable(body):
        return ()
    linked: list[Stmt] = []
    for stmt in body:
        assert isinstance(stmt, Let | Store)
        if not _is_long(stmt.value):
            linked.append(stmt)
            continue
        chain = _chain(stmt.value)
        done: Expr = chain.pop()
        while chain:
            name = f"link {len(linked)}"
            linked.append(Let(name, done))
            link, inner = chain.pop(), Ref(name, done.dtype)
            after = _continued(link)
            done = Op(link.op, tuple(inner if a is after else a for a in link.args), link.dtype)
        linked.append(replace(stmt, value=done))
    return tuple(linked) if len(linked) > len(body) else ()


def _is_long(expr: Expr) -> bool:
    return len(visit.expr_loads([expr])) >= _LONG and len(_chain(expr)) >= _LONG


def _chain(expr: Expr) -> list[Op]:
    """The operations on the way down from ``expr``, each time into the operand that reads most."""
    chain: list[Op] = []
    while isinstance(expr, Op):
        chain.append(expr)
        if not expr.args:
            break
        expr = _continued(expr)
    return chain


def _continued(link: Op) -> Expr:
    return max(link.args, key=lambda a: len(visit.expr_loads([a])) if isinstance(a, Op) else -1)
