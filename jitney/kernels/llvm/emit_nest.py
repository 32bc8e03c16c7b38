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
        block = _bind_item(scope, schedule, loop.index)

        def point(scopes: list[Scope], _: list[State]) -> list[State]:
            if schedule.vector is None:
                emitter.block(scopes, body)
            elif schedule.tile is not None:
                emit_tiles(emitter, scopes[0], schedule, schedule.tile, _span_of(scopes[0]))
            else:
                emit_pieces(emitter, scopes[0], schedule, body, _span_of(scopes[0]))
            return []

        def _span_of(scope: Scope) -> Span:
            return _span(emitter, scope, schedule, block)

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


def _bind_item(scope: Scope, schedule: Schedule, item: str) -> str | None:
    """Binds the axes a work item stands for: digits of its number, the last varies fastest.

    Returns the number of its block of the vector axis, which varies fastest of all.
    """
    text, block = scope.text, None
    digits: list[tuple[Axis | None, str]] = []
    if schedule.block is not None and schedule.vector is not None:
        count = (schedule.vector.extent + (schedule.block - 1)) // schedule.block
        digits.append((None, scope.indices.uniform(count)))
    digits += [(a, scope.indices.uniform(a.extent)) for a in reversed(schedule.items)]
    rest = item
    for k, (axis, extent) in enumerate(digits):
        last = k == len(digits) - 1
        digit = rest if last else text.pure(f"urem i64 {rest}, {extent}")
        rest = rest if last else text.pure(f"udiv i64 {rest}, {extent}")
        if axis is None:
            block = digit
        else:
            scope.axes[axis] = digit
    return block


def _span(emitter: BodyEmitter, scope: Scope, schedule: Schedule, block: str | None) -> Span:
    """The part of the vector axis this item owns."""
    axis, text = schedule.vector, scope.text
    assert axis is not None
    end = emitter.end(scope, axis)
    known = axis.extent.const if axis.extent.is_const else None
    if block is None or schedule.block is None:
        return Span("0", end, known)
    begin = text.pure(f"mul nsw i64 {block}, {schedule.block}")
    after = text.pure(f"add nsw i64 {begin}, {schedule.block}")
    if known is not None and known % schedule.block == 0:
        return Span(begin, after, schedule.block)
    return Span(begin, text.smaller(after, end))
