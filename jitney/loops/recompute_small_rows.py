"""A norm over one row is done again inside the products that read the row.

When a matrix product has one row, the norm before it is a kernel of a single program that all
others wait for. Reading the row (a few KiB, from cache) in every program of the product costs
less than that wait, so the norm's statements move into each consumer that needs its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, index
from jitney.loops.ir import Expr, Let, Load, Loop, LoopNest, LoopProgram, Node, Reduce, Stmt, Store
from jitney.loops.visit import (
    Renaming,
    bound_names,
    inner_axes,
    loads,
    map_stmt,
    reads,
    stores,
    writes,
)

#: Elements of a row that every program of the consumer may read again.
LIMIT = 16384


def recompute_small_rows(program: LoopProgram) -> LoopProgram:
    """``program`` with one-row reductions folded into the reductions that read their result."""
    producers: dict[str, LoopNest] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        changed = set(writes(node))
        if isinstance(node, LoopNest):
            for name in [n for n in reads(node) if n in producers]:
                if name in reads(node) and can_recompute(producers[name], node):
                    node = _folded(producers[name], node)
        producers = {
            b: p for b, p in producers.items() if b not in changed and not changed & set(reads(p))
        }
        if isinstance(node, LoopNest) and is_short_row(node, program):
            producers.update(dict.fromkeys(writes(node), node))
        nodes.append(node)
    return _without_unread(replace(program, nodes=tuple(nodes)))


def is_short_row(node: LoopNest, program: LoopProgram) -> Decision:
    """Whether ``node`` reduces one short row and stores numbers or rows made from it."""
    if node.axes:
        return no("it has more than one row")
    if not any(isinstance(s, Reduce) for s in node.body):
        return no("it reduces nothing")
    for stmt in node.body:
        if isinstance(stmt, Loop) and (
            len(stmt.axes) != 1 or not all(isinstance(s, Store) for s in stmt.body)
        ):
            return no("it does more than store a row")
        if isinstance(stmt, Reduce) and not all(isinstance(s, Let) for s in stmt.body):
            return no("its reduction does more than reduce")
    made = stores(node.body)
    if any(s.mode != "set" or s.mask is not None for s in made):
        return no("it scatters")
    if any(program.buffer(s.buffer).kind != "temp" for s in made):
        return no("a result leaves the program")
    if len({s.buffer for s in made}) < len(made) or {s.buffer for s in made} & set(reads(node)):
        return no("it reads what it writes")
    if not all(a.extent.is_const and int(a.extent) <= LIMIT for a in inner_axes(node.body)):
        return no("the row is long")
    return yes("one short row")


def can_recompute(producer: LoopNest, consumer: LoopNest) -> Decision:
    """Whether the consumer's programs gain by reducing the row themselves."""
    if not consumer.axes or not any(isinstance(s, Reduce) for s in consumer.body):
        return no("the consumer is too light to hide the row")
    if set(writes(consumer)) & set(reads(producer)):
        return no("the consumer overwrites the row")
    made = set(writes(producer))
    if any(load.mask is not None and load.buffer in made for load in loads(consumer.body)):
        return no("the consumer also reads beside the row")
    for stmt in producer.body:
        for store in stmt.body if isinstance(stmt, Loop) else ():
            assert isinstance(stmt, Loop) and isinstance(store, Store)
            if store.index != index(stmt.axes[0]):
                return no("the row is not stored in order")
    return yes("reading the row again is cheaper than waiting for it")


@dataclass(frozen=True)
class _Made:
    """What a buffer of the producer holds: ``value`` at ``axis`` (None: one number)."""

    value: Expr
    axis: Axis | None


def _folded(producer: LoopNest, consumer: LoopNest) -> LoopNest:
    suffix = f"_in_{consumer.name}"
    axes = {a: Axis(a.name + suffix, a.extent) for a in inner_axes(producer.body)}
    renaming = Renaming(
        {a: index(b) for a, b in axes.items()},
        {n: n + suffix for n in bound_names(producer.body)},
    )
    before: list[Stmt] = []
    made: dict[str, _Made] = {}
    for stmt in producer.body:
        if isinstance(stmt, Store):
            made[stmt.buffer] = _Made(renaming.expr(stmt.value), None)
        elif isinstance(stmt, Loop):
            for store in stmt.body:
                assert isinstance(store, Store)
                made[store.buffer] = _Made(renaming.expr(store.value), axes[stmt.axes[0]])
        else:
            moved = renaming.stmt(stmt)
            if isinstance(moved, Reduce):
                moved = replace(moved, axes=tuple(axes[a] for a in moved.axes))
            before.append(moved)

    def leaf(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.buffer not in made:
            return expr
        found = made[expr.buffer]
        if found.axis is None:
            return found.value
        return Renaming({found.axis: expr.index}).expr(found.value)

    memo: dict[int, Expr] = {}
    rest = tuple(map_stmt(s, leaf, memo) for s in consumer.body)
    origins = producer.origins + consumer.origins
    body = (*before, *rest)
    return replace(consumer, body=body, origins=tuple(dict.fromkeys(origins)))


def _without_unread(program: LoopProgram) -> LoopProgram:
    """Drops short rows that nobody reads any more, and their buffers."""
    read = {name for node in program.nodes for name in reads(node)}
    kept = tuple(
        node
        for node in program.nodes
        if not isinstance(node, LoopNest)
        or not is_short_row(node, program)
        or set(writes(node)) & read
    )
    used = {name for node in kept for name in (*reads(node), *writes(node))}
    buffers = tuple(b for b in program.buffers if b.kind != "temp" or b.name in used)
    return replace(program, nodes=kept, buffers=buffers)
