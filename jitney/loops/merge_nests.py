"""Nests that walk the same rows become one: a reduction with what follows it, and siblings.

``for row: reduce …; store mean[row]`` and ``for row, col: … mean[row] …`` become
``for row: reduce …; for col: …``. What the first stores and the second loads at the same point
stays in a register; loops inside the merged rows are then joined in their turn (`join_loops`).
"""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.align_nests import Alignment, align_nests
from jitney.loops.decision import Decision, no
from jitney.loops.forward_stores import drop_dead_stores, forward_stores
from jitney.loops.fusion_state import HOLE, FusionState
from jitney.loops.index import Axis, Index, index
from jitney.loops.join_loops import join_loops
from jitney.loops.score_fusion import feeds_reduction, worth_merging
from jitney.loops.simplify_nest import unused
from jitney.loops.split_reduction import chunks_wanted
from jitney.loops.target import Target

NEAR = 8  # siblings looked at per buffer


def merge_nests(state: FusionState, target: Target | None = None) -> None:
    """Merges every nest with earlier ones, where that is legal and pays."""
    for at in list(state.order):
        if at == HOLE or not isinstance(state.nodes.get(at), ir.LoopNest):
            continue
        merged = True
        while merged:
            merged = any(_try_merge(state, other, at, target) for other in _candidates(state, at))


def _candidates(state: FusionState, at: int) -> list[int]:
    """Nests before this one: its producers, nearest first, then readers of what it reads."""
    rank = state.rank
    producers: set[int] = set()
    siblings: set[int] = set()
    for name in state.reads[at]:
        producers.update(w for w in state.writers.get(name, ()) if rank[w] < rank[at])
        readers = [r for r in state.readers[name] if rank[r] < rank[at]]
        siblings.update(sorted(readers, key=rank.__getitem__)[-NEAR:])
    siblings -= producers
    ordered = sorted(producers, key=rank.__getitem__, reverse=True)
    ordered += sorted(siblings, key=rank.__getitem__, reverse=True)
    return [x for x in ordered if isinstance(state.nodes[x], ir.LoopNest)]


def _try_merge(state: FusionState, a: int, b: int, target: Target | None) -> bool:
    """Merges ``a`` into ``b``; False if that may not or should not be."""
    first, second = state.nodes[a], state.nodes[b]
    assert isinstance(first, ir.LoopNest) and isinstance(second, ir.LoopNest)
    verdict: Decision = state.can_merge(a, b)
    alignment: Alignment | None = None
    if verdict:
        alignment = align_nests(first, second)
        if alignment is None:
            verdict = no("they share elements in a way that cannot be traced")
        else:
            flows = not set(state.writes[a]).isdisjoint(state.reads[b])
            verdict = worth_merging(alignment, flows, target)
    both: ir.LoopNest | None = None
    if verdict and alignment is not None:
        both = merged_nest(state, alignment)
        if feeds_reduction(alignment) and not _one_pass(both, target):
            verdict = no("the reduction it feeds cannot take it in")
        elif target is not None and target.kind == "cuda" and _nests_several_values(both):
            verdict = no("a reduction of several values would run inside a row")
    state.note(verdict, "merge", first.name, second.name)
    if not verdict or both is None:
        return False
    merged = state.merge(a, b, both)
    drop_dead_stores(state, merged)
    return True


def _one_pass(nest: ir.LoopNest, target: Target | None) -> bool:
    """Whether no loop is left beside the nest's reductions, which can be done in chunks."""
    loops = any(isinstance(s, ir.Loop) for s in nest.body)
    return not loops and target is not None and chunks_wanted(nest, target) > 1


def _nests_several_values(nest: ir.LoopNest) -> bool:
    """Whether a loop has a reduction inside that keeps several values on its way: a GPU's program
    takes such inner rows point by point, with one value for each."""
    rows = [s for s in nest.body if isinstance(s, ir.Loop | ir.Reduce)]
    inner = (s for row in rows for s in visit.statements(row.body) if isinstance(s, ir.Reduce))
    return any(r.op in ir.OF_SEVERAL_VALUES for s in inner for r in s.results)


def merged_nest(state: FusionState, alignment: Alignment) -> ir.LoopNest:
    """One nest over the paired axes that runs ``a``'s body, then ``b``'s."""
    a, b = alignment.a, alignment.b
    common = tuple(y for _, y in alignment.pairs)
    paired = dict(alignment.pairs)
    taken = {x.name for x in (*b.axes, *visit.inner_axes(b.body))}
    taken |= {x.name for x in visit.inner_axes(a.body)}
    moved: dict[Axis, Index] = {}
    rest_a: list[Axis] = []
    for axis in a.axes:
        if axis in paired:
            moved[axis] = index(paired[axis])
        else:
            fresh = Axis(unused(axis.name, taken), axis.extent)
            taken.add(fresh.name)
            moved[axis] = index(fresh)
            rest_a.append(fresh)
    own = {x.name for x in b.axes}
    inner = {
        x: Axis(unused(x.name, taken | own), x.extent)
        for x in visit.inner_axes(a.body)
        if x.name in own
    }
    body_a = visit.rename_axes(a.body, moved, inner)
    rest_b = tuple(x for x in b.axes if x not in set(common))
    body = (*_looped(tuple(rest_a), body_a), *_looped(rest_b, b.body))
    body = join_loops(forward_stores(body, state), state)
    origins = tuple(dict.fromkeys((*a.origins, *b.origins)))
    return replace(b, axes=common, body=forward_stores(body, state), origins=origins)


def _looped(axes: tuple[Axis, ...], body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    return (ir.Loop(axes, body),) if axes else body
