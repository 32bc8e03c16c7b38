"""A reduction to one number (a norm's scale over one row) is done again inside its consumers.

When a matrix product has one row, the norm before it is a kernel of a single program that all
others wait for. Reading the row (a few KiB, from cache) in every program of the product costs
less than that wait, so the statements move into each consumer that needs the number.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, index
from jitney.loops.ir import Expr, Load, Loop, LoopNest, LoopProgram, Reduce, Stmt, Store
from jitney.loops.visit import Renaming, bound_names, inner_axes, map_expr, reads, stores
from jitney.loops.visit import writes as written_by

#: Elements of a row that every program of the consumer may read again.
LIMIT = 16384


def recompute_small_rows(program: LoopProgram) -> LoopProgram:
    """``program`` with one-number reductions folded into the nests that read the number."""
    producers: dict[str, LoopNest] = {}
    nodes = []
    for node in program.nodes:
        for name in written_by(node):
            producers.pop(name, None)
        changed = set(written_by(node))
        producers = {b: p for b, p in producers.items() if not changed & set(reads(p))}
        if isinstance(node, LoopNest):
            for name in [n for n in reads(node) if n in producers]:
                if can_recompute(producers[name], node):
                    node = _folded(producers[name], node, name)
            if is_single_number(node, program):
                producers[stores(node.body)[0].buffer] = node
        nodes.append(node)
    return _without_unread(replace(program, nodes=tuple(nodes)))


def is_single_number(node: LoopNest, program: LoopProgram) -> Decision:
    """Whether ``node`` reduces one short row to one stored temporary."""
    if node.axes:
        return no("it has more than one row")
    if not all(isinstance(s, Reduce | Store) for s in node.body):
        return no("it writes more than its reduction")
    made = stores(node.body)
    if len(made) != 1 or made[0].mode != "set" or made[0].mask is not None:
        return no("it does not store exactly one number")
    if program.buffer(made[0].buffer).kind != "temp":
        return no("its result leaves the program")
    points = index(1)
    for axis in inner_axes(node.body):
        points = points * axis.extent
    if not points.is_const or int(points) > LIMIT:
        return no("the row is long")
    return yes("one short row, one number")


def can_recompute(producer: LoopNest, consumer: LoopNest) -> Decision:
    """Whether the consumer's programs gain by reducing the row themselves."""
    if not any(isinstance(s, Reduce) for s in consumer.body):
        return no("the consumer is too light to hide the row")
    if set(written_by(consumer)) & set(reads(producer)):
        return no("the consumer overwrites the row")
    return yes("reading the row again is cheaper than waiting for it")


def _folded(producer: LoopNest, consumer: LoopNest, buffer: str) -> LoopNest:
    suffix = f"_in_{consumer.name}"
    names = {n: n + suffix for n in bound_names(producer.body)}
    axes = {a: Axis(a.name + suffix, a.extent) for a in inner_axes(producer.body)}
    renaming = Renaming({a: index(b) for a, b in axes.items()}, names)
    body = tuple(_rebound(s, renaming, axes) for s in producer.body if isinstance(s, Reduce))
    store = stores(producer.body)[0]
    number = renaming.expr(store.value)

    def leaf(expr: Expr) -> Expr:
        return number if isinstance(expr, Load) and expr.buffer == buffer else expr

    memo: dict[int, Expr] = {}
    rest = tuple(_mapped(s, leaf, memo) for s in consumer.body)
    origins = producer.origins + consumer.origins
    return replace(consumer, body=body + rest, origins=tuple(dict.fromkeys(origins)))


def _rebound(stmt: Reduce, renaming: Renaming, axes: dict[Axis, Axis]) -> Reduce:
    moved = renaming.stmt(stmt)
    assert isinstance(moved, Reduce)
    return replace(moved, axes=tuple(axes[a] for a in stmt.axes))


def _mapped(stmt: Stmt, leaf, memo: dict[int, Expr]) -> Stmt:  # type: ignore[no-untyped-def]
    if isinstance(stmt, Store):
        mask = None if stmt.mask is None else map_expr(stmt.mask, leaf, memo)
        return replace(stmt, value=map_expr(stmt.value, leaf, memo), mask=mask)
    if isinstance(stmt, Reduce):
        results = tuple(replace(r, value=map_expr(r.value, leaf, memo)) for r in stmt.results)
        inner = tuple(_mapped(s, leaf, memo) for s in stmt.body)
        return replace(stmt, body=inner, results=results)
    if isinstance(stmt, Loop):
        return replace(stmt, body=tuple(_mapped(s, leaf, memo) for s in stmt.body))
    return replace(stmt, value=map_expr(stmt.value, leaf, memo))


def _without_unread(program: LoopProgram) -> LoopProgram:
    """Drops nests whose only store nobody reads any more."""
    read = {name for node in program.nodes for name in reads(node)}
    kept = tuple(
        node
        for node in program.nodes
        if not isinstance(node, LoopNest)
        or not is_single_number(node, program)
        or stores(node.body)[0].buffer in read
    )
    used = read | {name for node in kept for name in written_by(node)}
    buffers = tuple(b for b in program.buffers if b.kind != "temp" or b.name in used)
    return replace(program, nodes=kept, buffers=buffers)
