"""Pointwise consumers of a GEMM's result run in its epilogue, while the result is in registers."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.decision import Decision, no, yes
from jitney.loops.forward_stores import drop_dead_stores, forward_stores
from jitney.loops.fusion_state import FusionState
from jitney.loops.index import Axis, FloorDiv, Index, Mod, index
from jitney.loops.invert_index import invert_index
from jitney.loops.points import points_of
from jitney.loops.verify_order import where_iterations_meet

Solved = tuple[tuple[Axis, Index], ...]


def absorb_epilogue(state: FusionState, at: int) -> int | None:
    """Moves nest ``at`` into the latest template whose result it reads, where that is legal.

    Returns the id of the grown template, None when there is none.
    """
    nest = state.nodes[at]
    assert isinstance(nest, ir.LoopNest)
    producers = {state.producer(name) for name in state.reads[at]}
    templates = [p for p in producers if p is not None and p != at and _is_template(state, p)]
    for producer in sorted(templates, key=state.rank.__getitem__, reverse=True):
        node = state.nodes[producer]
        legal = _absorbed(state, producer, at)
        if isinstance(legal, Decision):
            state.note(legal, "epilogue", node.name, nest.name)
            continue
        state.note(
            yes("it runs once for each element of the result"), "epilogue", node.name, nest.name
        )
        merged = state.merge(producer, at, legal)
        drop_dead_stores(state, merged)
        return merged
    return None


def _is_template(state: FusionState, at: int) -> bool:
    return isinstance(state.nodes[at], ir.Gemm | ir.Attention)


def _absorbed(state: FusionState, producer: int, at: int) -> ir.Node | Decision:
    """The template with the nest in its epilogue, or why that cannot be."""
    node, nest = state.nodes[producer], state.nodes[at]
    assert isinstance(nest, ir.LoopNest)
    if any(isinstance(s, ir.Loop | ir.Reduce) for s in nest.body):
        return no(f"{nest.name} reduces or loops")
    ordered = state.can_merge(producer, at)
    if not ordered:
        return ordered
    if isinstance(node, ir.Attention):
        return _with_layout(state, node, nest)
    assert isinstance(node, ir.Gemm)
    axes = (*node.batch, node.m, node.n)
    stored = {s.buffer: s for s in node.epilogue if isinstance(s, ir.Store)}
    if any(s.mask is not None or s.mode != "set" for s in stored.values()):
        return no(f"{node.name} stores under a mask")
    used = [e for e in visit.loads(nest.body) if e.buffer in stored]
    solved = _solve(nest, used, stored, axes)
    if isinstance(solved, Decision):
        return solved
    renaming = visit.Renaming(dict(solved))
    body = renaming.block(nest.body)
    ragged = _ragged_store(body, node.n)
    if ragged is not None:
        return no(f"{nest.name} would store {ragged} with a stride")
    known = set(visit.bound_names(node.epilogue)) & set(visit.bound_names(body))
    if known:
        return no(f"{node.name} and {nest.name} share names")
    joined = forward_stores((*node.epilogue, *body), state)
    origins = tuple(dict.fromkeys((*node.origins, *nest.origins)))
    grown = replace(node, epilogue=joined, origins=origins)
    overwrites = not set(state.writes[at]).isdisjoint(state.reads[producer])
    if overwrites and (meeting := where_iterations_meet(grown, anywhere=True)):
        return no(f"{nest.name} overwrites what {node.name} reads: {meeting}")
    return grown


def _solve(
    nest: ir.LoopNest, used: list[ir.Load], stored: dict[str, ir.Store], axes: tuple[Axis, ...]
) -> Solved | Decision:
    """The nest's axes as functions of the template's, such that all loads meet the stores."""
    if not used:
        return no(f"{nest.name} reads nothing the epilogue stores")
    if points_of(nest.axes) != points_of(axes):
        return no(f"{nest.name} has not one point for each element")
    first = used[0]
    solved = invert_index(first.index, nest.axes, stored[first.buffer].index)
    if solved is None:
        return no(f"{nest.name} does not read each element once")
    mapping = dict(solved)
    for load in used:
        if load.mask is not None:
            return no(f"{nest.name} reads {load.buffer} under a mask")
        if load.index.substitute(mapping) != stored[load.buffer].index:
            return no(f"{nest.name} reads other elements of {load.buffer} than its own")
    return solved


def _ragged_store(body: tuple[ir.Stmt, ...], n: Axis) -> str | None:
    """A buffer the body stores with neighbours of ``n`` apart, or split into short runs."""
    for store in visit.stores(body):
        stride = store.index.coefficient(n)
        if stride is not None and stride == index(1):
            continue
        if n.extent == index(1):
            continue
        runs = [a for a in store.index.atoms() if isinstance(a, Mod) and a.numerator == index(n)]
        if stride is None and runs and all(_long_run(store.index, run, n) for run in runs):
            continue
        return store.buffer
    return None


def _long_run(where: Index, run: Mod, n: Axis) -> bool:
    """Whether ``where`` is contiguous in ``n % run`` and the run fills whole vectors."""
    low = Axis("low", run.denominator)
    moved = where.substitute({run: low, **{a: 0 for a in where.atoms() if isinstance(a, FloorDiv)}})
    return (
        run.denominator.is_const
        and run.denominator.const % 16 == 0
        and moved.coefficient(low) == index(1)
        and moved.coefficient(n) == Index()
    )


def _with_layout(state: FusionState, node: ir.Attention, nest: ir.LoopNest) -> ir.Node | Decision:
    """Attention that stores straight into the layout a copy gives its result."""
    stores = visit.stores(nest.body)
    out = node.out
    if len(nest.body) != 1 or len(stores) != 1 or stores[0].mask is not None:
        return no(f"{nest.name} is not a plain copy")
    store, value = stores[0], stores[0].value
    if store.buffer in visit.reads(node):
        return no(f"{nest.name} overwrites what {node.name} reads")
    if not isinstance(value, ir.Load) or value.mask is not None or value.buffer != out.buffer:
        return no(f"{nest.name} is not a plain copy")
    if len(state.readers[out.buffer]) > 1 or not state.is_private(out.buffer):
        return no(f"{out.buffer} is needed as it is")
    axes = (*node.batch, node.s, node.dv)
    if points_of(nest.axes) != points_of(axes):
        return no(f"{nest.name} does not copy the whole result")
    solved = invert_index(value.index, nest.axes, out.index)
    if solved is None:
        return no(f"{nest.name} does not read each element once")
    moved = store.index.substitute(dict(solved))
    if any(moved.coefficient(a) is None for a in axes) or moved.coefficient(node.dv) != index(1):
        return no(f"{nest.name} would store with a stride")
    origins = tuple(dict.fromkeys((*node.origins, *nest.origins)))
    return replace(node, out=ir.Access(store.buffer, moved, out.dtype), origins=origins)
