"""A `LoopNest` as LLVM functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jitney.kernels.llvm.emit_body import BodyEmitter, InnerPlan, State
from jitney.kernels.llvm.emit_tiles import emit_tiles
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.node_code import SIGNATURE, NodeCode, Phase
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.schedule_nest import Schedule, schedule_nest
from jitney.kernels.llvm.split_ranges import Piece, split_ranges
from jitney.kernels.llvm.split_stages import Stage, split_stages
from jitney.kernels.llvm.stash_rows import stash_rows
from jitney.kernels.llvm.text import FunctionText
from jitney.kernels.llvm.unroll_chains import has_long_chains, unroll_chains
from jitney.kernels.llvm.vector_loop import Span, VectorLoop
from jitney.kernels.llvm.verify_stages import verify_stages
from jitney.loops import visit
from jitney.loops.index import Axis, Dim
from jitney.loops.ir import Loop, LoopNest, Reduce, ScalarArg, Stmt
from jitney.loops.target import Target


def emit_nest(
    nest: LoopNest,
    name: str,
    buffers: Sequence[str],
    scalars: Sequence[Dim | ScalarArg],
    target: Target,
) -> NodeCode:
    """The code of a nest; function names start with ``name``, tables are in the order given."""
    isa = isa_of(target)
    if has_long_chains(nest.body):
        nest = _unrolled(nest, schedule_nest(nest, isa, target.cores))
    plan = split_stages(nest)
    verify_stages(nest, plan)
    phases, parts, declarations, scratch = [], [], set(), 0
    for k, stage in enumerate(plan.stages):
        schedule = schedule_nest(stage.nest, isa, target.cores, stage.limits.values())
        function = f"{name}_{k}"
        text = FunctionText(function, SIGNATURE, isa)
        operands = Operands(text, buffers, scalars, visit.writes(stage.nest))
        if schedule.vector is None:
            stashed = stash_rows(stage.nest.body)
            stage = replace(stage, nest=replace(stage.nest, body=stashed.body))
            scratch = max(scratch, stashed.scratch_bytes)
            for local, place in stashed.rows:
                row = text.pure(f"getelementptr i8, ptr %scratch, i64 {place}")
                operands.add_local(local, row)
        for local, offset in plan.shared:
            start = Scope(text, operands).indices.uniform(offset)
            operands.add_local(local, text.pure(f"getelementptr i8, ptr %shared, i64 {start}"))
        emit_stage(text, operands, stage, schedule)
        parts.append(text.finish())
        declarations |= text.declarations
        phases.append(Phase(function, schedule.item_count(), schedule.nanoseconds))
    return NodeCode(
        "\n".join(parts),
        tuple(phases),
        tuple(buffers),
        tuple(scalars),
        scratch_bytes=scratch,
        shared_bytes=plan.shared_bytes,
        declarations=frozenset(declarations),
    )


def _unrolled(nest: LoopNest, schedule: Schedule) -> LoopNest:
    plans = _plans_by_id(nest.body, schedule)
    lanes = {key: (plan.vector, plan.unroll) for key, plan in plans.items()}
    return unroll_chains(nest, (schedule.vector, schedule.unroll), lambda stmt: lanes[id(stmt)])


def emit_stage(text: FunctionText, operands: Operands, stage: Stage, schedule: Schedule) -> None:
    """The loop over work items and everything in it."""
    body = stage.nest.body
    emitter = BodyEmitter(text, _plans_by_id(body, schedule), stage.limits)
    with text.loop("%begin", "%end", 1, nonempty=True) as loop:
        scope = Scope(text, operands)
        begins = _bind_item(scope, schedule, loop.index)

        def point(scopes: list[Scope], _: list[State]) -> list[State]:
            if schedule.vector is None:
                emitter.block(scopes, body)
            elif schedule.tile is not None:
                tile = schedule.tile
                rows = _span(emitter, scopes[0], tile.axis, begins.get(tile.axis))
                emit_tiles(emitter, scopes[0], schedule, tile, (rows, vectors(scopes[0])))
            else:
                emit_pieces(emitter, scopes[0], schedule, body, vectors(scopes[0]))
            return []

        def vectors(scope: Scope) -> Span:
            assert schedule.vector is not None
            return _span(emitter, scope, schedule.vector, begins.get(schedule.vector))

        emitter.nest(schedule.inner, [scope], point)


def emit_pieces(
    emitter: BodyEmitter, scope: Scope, schedule: Schedule, body: tuple[Stmt, ...], span: Span
) -> None:
    """The vector axis over ``span``, a loop for each range in which conditions are constant."""
    assert schedule.vector is not None
    pieces = split_ranges(body, schedule.vector)
    for piece in pieces:

        def leaf(scopes: list[Scope], states: list[State], piece: Piece = piece) -> list[State]:
            emitter.block(scopes, piece.body)
            return states

        part = span if len(pieces) == 1 else _within(scope, span, piece)
        unroll = _fitting_unroll(schedule, part)
        VectorLoop([scope], piece.axis, part, schedule.lanes, unroll, leaf).emit()


def _fitting_unroll(schedule: Schedule, span: Span) -> int:
    unroll = schedule.unroll
    while unroll > 1 and span.count is not None and span.count % (unroll * schedule.lanes):
        unroll //= 2
    return unroll


def _within(scope: Scope, span: Span, piece: Piece) -> Span:
    """The part of ``span`` a piece covers, counted from the piece's start."""
    text, extent = scope.text, piece.axis.extent.const
    if span.begin == "0" and span.count is not None:
        return Span("0", str(extent), extent)
    edges: list[str] = []
    for edge in (span.begin, span.end):
        moved = text.pure(f"sub nsw i64 {edge}, {piece.low}")
        edges.append(text.smaller(text.larger(moved, "0"), str(extent)))
    return Span(edges[0], edges[1], aligned=False)


def _plans_by_id(body: Sequence[Stmt], schedule: Schedule) -> Mapping[int, InnerPlan]:
    blocks = [s for s in visit.statements(body) if isinstance(s, Reduce | Loop)]
    return {id(s): plan for s, plan in zip(blocks, schedule.plans, strict=False)}


#: Where an item's block of an axis begins (an SSA value), and how many points it has.
Block = tuple[str, int]


def _bind_item(scope: Scope, schedule: Schedule, item: str) -> dict[Axis, Block]:
    """Binds the axes a work item stands for: digits of its number, the last varies fastest.

    Returns the item's blocks of axes, whose digits vary fastest of all.
    """
    text, blocks = scope.text, schedule.blocks()
    counts = [(axis.extent + (size - 1)) // size for axis, size in blocks]
    counts += [axis.extent for axis in reversed(schedule.items)]
    digits, rest = [], item
    for k, count in enumerate(counts):
        last, extent = k == len(counts) - 1, scope.indices.uniform(count)
        digits.append(rest if last else text.pure(f"urem i64 {rest}, {extent}"))
        rest = rest if last else text.pure(f"udiv i64 {rest}, {extent}")
    scope.axes.update(zip(reversed(schedule.items), digits[len(blocks) :], strict=True))
    return {
        axis: (text.pure(f"mul nsw i64 {digit}, {size}"), size)
        for (axis, size), digit in zip(blocks, digits, strict=False)
    }


def _span(emitter: BodyEmitter, scope: Scope, axis: Axis, block: Block | None) -> Span:
    """The part of an axis this item owns."""
    text, end = scope.text, emitter.end(scope, axis)
    known = axis.extent.const if axis.extent.is_const else None
    if block is None:
        return Span("0", end, known)
    begin, size = block
    after = text.pure(f"add nsw i64 {begin}, {size}")
    if known is not None and known % size == 0:
        return Span(begin, after, size)
    return Span(begin, text.smaller(after, end))
