"""A `LoopNest` as LLVM functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitney.kernels.llvm.emit_body import BodyEmitter, InnerPlan, Span, State
from jitney.kernels.llvm.emit_tiles import emit_tiles
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.isa import Isa, isa_of
from jitney.kernels.llvm.node_code import SIGNATURE, NodeCode, Phase
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.schedule_nest import Schedule, schedule_nest
from jitney.kernels.llvm.split_stages import Stage, split_stages
from jitney.kernels.llvm.text import FunctionText
from jitney.kernels.llvm.welford_as_sums import welford_as_sums
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
    plan = split_stages(welford_as_sums(nest))
    phases, parts, declarations = [], [], set()
    for k, stage in enumerate(plan.stages):
        schedule = schedule_nest(stage.nest, isa, target.cores)
        function = f"{name}_{k}"
        text = FunctionText(function, SIGNATURE, isa)
        operands = Operands(text, buffers, scalars, visit.writes(stage.nest))
        for local, offset in plan.shared:
            place = Scope(text, operands).indices.uniform(offset)
            operands.add_local(local, text.pure(f"getelementptr i8, ptr %shared, i64 {place}"))
        emit_stage(text, operands, stage, schedule, isa)
        parts.append(text.finish())
        declarations |= text.declarations
        phases.append(Phase(function, schedule.item_count(), schedule.nanoseconds))
    return NodeCode(
        "\n".join(parts),
        tuple(phases),
        tuple(buffers),
        tuple(scalars),
        shared_bytes=plan.shared_bytes,
        declarations=frozenset(declarations),
    )


def emit_stage(
    text: FunctionText, operands: Operands, stage: Stage, schedule: Schedule, isa: Isa
) -> None:
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
                shape = (schedule.lanes, schedule.unroll)
                axis, span = schedule.vector, _span_of(scopes[0])
                emitter.vector_loop(scopes, axis, span, shape, [], leaf)
            return []

        def leaf(scopes: list[Scope], states: list[State]) -> list[State]:
            emitter.block(scopes, body)
            return states

        def _span_of(scope: Scope) -> Span:
            return _span(emitter, scope, schedule, block)

        emitter.nest(schedule.inner, [scope], point)


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


def _span(
    emitter: BodyEmitter, scope: Scope, schedule: Schedule, block: str | None
) -> Span:
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
    return Span(begin, text.call("i64", "llvm.smin.i64", f"i64 {after}", f"i64 {end}"))

