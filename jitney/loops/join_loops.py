"""Loops and reductions over equal axes in one block run as one where their order allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

from jitney.loops import ir, visit
from jitney.loops.align_nests import Site, load_sites, store_sites
from jitney.loops.forward_stores import forward_stores
from jitney.loops.fusion_state import FusionState
from jitney.loops.index import Atom, Axis, Index, index
from jitney.loops.invert_index import same_iteration


def join_loops(body: tuple[ir.Stmt, ...], state: FusionState) -> tuple[ir.Stmt, ...]:
    """Each loop or reduction joined with an earlier one it need not wait for.

    A loop joined with a reduction stores from inside the reduction.
    """
    out: list[ir.Stmt] = []
    for stmt in body:
        at = _partner(out, stmt) if isinstance(stmt, ir.Loop | ir.Reduce) else None
        if at is None:
            out.append(stmt)
        else:
            partner = out[at]
            assert isinstance(partner, ir.Loop | ir.Reduce)
            assert isinstance(stmt, ir.Loop | ir.Reduce)
            out[at] = _joined(partner, stmt, state)
    return tuple(out)


def _partner(before: list[ir.Stmt], stmt: ir.Loop | ir.Reduce) -> int | None:
    """The earliest statement that ``stmt`` may join: nothing from there on must precede it."""
    best: int | None = None
    if not any(_may_join(other, stmt) for other in before):
        return None
    needed = visit.used_names((stmt,))
    reads = {s.buffer for s in load_sites((stmt,), ())}
    writes = {s.buffer for s in store_sites((stmt,), ())}
    for at in range(len(before) - 1, -1, -1):
        other = before[at]
        if not needed.isdisjoint(visit.bound_names((other,))):
            break
        if _may_join(other, stmt) and _elementwise(other, stmt):
            best = at
        other_writes = {s.buffer for s in store_sites((other,), ())}
        other_reads = {s.buffer for s in load_sites((other,), ())}
        if not other_writes.isdisjoint(reads | writes) or not other_reads.isdisjoint(writes):
            break
    return best


def _may_join(other: ir.Stmt, stmt: ir.Loop | ir.Reduce) -> TypeGuard[ir.Loop | ir.Reduce]:
    """Whether ``other`` runs over axes of the same extents."""
    return isinstance(other, ir.Loop | ir.Reduce) and (
        [x.extent for x in other.axes] == [y.extent for y in stmt.axes]
    )


def _elementwise(first: ir.Loop | ir.Reduce, second: ir.Loop | ir.Reduce) -> bool:
    """Whether each iteration of ``second`` meets only what the same one of ``first`` touched."""
    # An inner axis may be called what an axis of ``first`` is, and yet counts by itself.
    moved = {x: Axis(f"{x.name} of the second", x.extent) for x in visit.inner_axes(second.body)}
    moved |= dict(zip(second.axes, first.axes, strict=True))
    stores, loads = list(store_sites((first,), ())), list(load_sites((first,), ()))
    written = {s.buffer for s in stores}
    touched = written | {s.buffer for s in loads}
    later_stores = [_renamed(s, moved) for s in store_sites((second,), ()) if s.buffer in touched]
    later_loads = [_renamed(s, moved) for s in load_sites((second,), ()) if s.buffer in written]
    pairs = [(s, t) for s in stores for t in (*later_loads, *later_stores)]
    pairs += [(s, t) for s in later_stores for t in loads]
    shared = [axis for axis in first.axes if axis.extent != index(1)]
    return all(
        same_iteration(stored.index, stored.axes, used.index, shared)
        for stored, used in pairs
        if stored.buffer == used.buffer
    )


def _renamed(site: Site, moved: Mapping[Axis, Axis]) -> Site:
    indices: dict[Atom, Index] = {x: index(y) for x, y in moved.items()}
    axes = tuple(moved.get(x, x) for x in site.axes)
    return replace(site, index=site.index.substitute(indices), axes=axes)


def _joined(
    first: ir.Loop | ir.Reduce, second: ir.Loop | ir.Reduce, state: FusionState
) -> ir.Loop | ir.Reduce:
    """Both bodies in one loop, and inside it what can be joined in its turn."""
    inner = {a.name for a in (*first.axes, *visit.inner_axes(first.body))}
    clash = {
        x: Axis(state.fresh(x.name), x.extent)
        for x in visit.inner_axes(second.body)
        if x.name in inner
    }
    moved = dict(zip(second.axes, map(index, first.axes), strict=True))
    (renamed,) = visit.rename_axes((replace(second, axes=()),), moved, clash)
    assert isinstance(renamed, ir.Loop | ir.Reduce)
    before, kept = _read_before(_results(first), renamed, state)
    body = join_loops((*first.body, *before, *renamed.body), state)
    results = kept + _results(renamed)
    if not results:
        return ir.Loop(first.axes, forward_stores(body, state))
    ends = tuple(ir.Let(f"{r.names[0]}_end", r.value) for r in results)
    forwarded = forward_stores((*body, *ends), state)
    split = len(forwarded) - len(ends)
    values = [s.value for s in forwarded[split:] if isinstance(s, ir.Let)]
    results = tuple(replace(r, value=v) for r, v in zip(results, values, strict=True))
    return ir.Reduce(first.axes, forwarded[:split], results)


def _read_before(
    results: tuple[ir.Reduction, ...], then: ir.Loop | ir.Reduce, state: FusionState
) -> tuple[tuple[ir.Let, ...], tuple[ir.Reduction, ...]]:
    """Lets for reduced values that load what ``then`` overwrites, and the results that use them.

    A reduction takes its value at the end of its body, which now comes after those stores.
    """
    written = {s.buffer for s in visit.stores(then.body)}
    lets: list[ir.Let] = []
    kept: list[ir.Reduction] = []
    for result in results:
        exprs = visit.expr_nodes([result.value])
        if any(isinstance(e, ir.Load) and e.buffer in written for e in exprs):
            lets.append(ir.Let(state.fresh(result.names[0]), result.value))
            result = replace(result, value=ir.Ref(lets[-1].name, result.value.dtype))
        kept.append(result)
    return tuple(lets), tuple(kept)


def _results(stmt: ir.Loop | ir.Reduce) -> tuple[ir.Reduction, ...]:
    return stmt.results if isinstance(stmt, ir.Reduce) else ()
