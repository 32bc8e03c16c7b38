"""What must hold of the stages into which a nest was cut; a breach is a `CompilerBug`.

1. No iteration of a stage touches what another one of it writes, even with the shortest chunks.
2. What stages compute again does not read anything written since it was first computed.
3. What the nest writes before it reads, the stages write before they read.
4. No axis of a stage is also an axis inside it.

Few nests are cut, so all of them are verified.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.errors import CompilerBug
from jitney.kernels.llvm.split_stages import Stage, StagePlan
from jitney.loops import visit
from jitney.loops.index import Axis, index
from jitney.loops.ir import Loop, LoopNest, Reduce, Stmt
from jitney.loops.verify_order import where_iterations_meet


def verify_stages(nest: LoopNest, plan: StagePlan) -> None:
    """Raises CompilerBug where running the stages in turn may not be running the nest."""
    if len(plan.stages) == 1 and plan.stages[0].nest is nest:
        return
    meetings = (where_iterations_meet(_shortest_chunks(stage)) for stage in plan.stages)
    why = next(filter(None, meetings), "") or _bound_twice(plan)
    if why := why or _found_anew(plan) or _read_too_early(nest, plan):
        raise CompilerBug(f"invalid stages of {nest.name}: {why}")


def _shortest_chunks(stage: Stage) -> LoopNest:
    """The stage with chunks of one element: exact where the last chunk ends early, too."""
    inner = stage.inner
    if inner is None:
        return stage.nest
    *axes, chunk = stage.nest.axes
    extent = chunk.extent * inner.extent
    if inner in stage.limits:
        extent = stage.limits[inner].substitute({chunk: 0})
    element = Axis(f"{chunk.name} of one", extent)
    moved = visit.Renaming({chunk: index(0), inner: index(element)})
    body: list[Stmt] = []
    for stmt in stage.nest.body:
        if isinstance(stmt, Loop | Reduce) and inner in stmt.axes:
            stmt = moved.stmt(replace(stmt, axes=tuple(a for a in stmt.axes if a != inner)))
        body.append(stmt)
    whole = visit.Renaming({chunk: index(element)}).block(tuple(body))
    return replace(stage.nest, axes=(*axes, element), body=whole)


def _bound_twice(plan: StagePlan) -> str:
    """An axis of a stage that is also an axis inside it; empty if there is none."""
    for stage in plan.stages:
        if twice := set(stage.nest.axes).intersection(visit.inner_axes(stage.nest.body)):
            return f"axis {min(a.name for a in twice)} is bound twice"
    return ""


def _found_anew(plan: StagePlan) -> str:
    """A name that a stage computes again from buffers that were written since; empty if there is
    none."""
    written: dict[str, set[str]] = {}  # of each name, since a stage found it first
    for stage in plan.stages:
        for position, stmt in enumerate(stage.nest.body):
            here = {s.buffer for s in visit.stores(stage.nest.body[:position])}
            for name in set(visit.bound_names((stmt,))) & written.keys():
                if changed := (written[name] | here).intersection(_reads(stmt)):
                    return f"{name} is found anew from {min(changed)}, which has been written"
        for name in visit.bound_names(stage.nest.body):
            written.setdefault(name, set())
        for since in written.values():
            since.update(visit.writes(stage.nest))
    return ""


def _read_too_early(nest: LoopNest, plan: StagePlan) -> str:
    """A buffer that stages read before the nest's first write to it; empty if there is none."""
    made = _written_first(nest.body)
    in_stages = _written_first(tuple(s for stage in plan.stages for s in stage.nest.body))
    early = min(made - in_stages, default="")
    return early and f"{early} is read before it is written"


def _written_first(body: tuple[Stmt, ...]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    for stmt in body:
        reads, writes = _reads(stmt), {s.buffer for s in visit.stores((stmt,))}
        found |= writes - reads - seen
        seen |= reads | writes
    return found


def _reads(stmt: Stmt) -> set[str]:
    return set(visit.reads(LoopNest("", (), (stmt,))))
