"""Whether a fusion keeps the program's meaning: answers with reasons, nothing about speed."""

from __future__ import annotations

from jitney.loops import ir, visit
from jitney.loops.decision import Decision, no, yes
from jitney.loops.fusion_state import FusionState
from jitney.loops.index import Index
from jitney.loops.inline_copies import can_read_through
from jitney.loops.invert_index import invert_index, mixed_radix
from jitney.loops.pointwise_nest import PointwiseNest, pointwise


def can_inline(state: FusionState, at: int, simple: PointwiseNest) -> Decision:
    """Whether every reader of the nest's result may compute it itself."""
    buffer = simple.store.buffer
    if not state.is_private(buffer):
        return no(f"{buffer} is visible outside the program")
    if state.producer(buffer) != at:
        return no(f"{buffer} is written more than once")
    readers = state.readers.get(buffer, set())
    if not readers:
        return no(f"nothing reads {buffer}")
    if mixed_radix(simple.store.index, simple.nest.axes) is None:
        return no("its elements cannot be traced back to its axes")
    for reader in readers:
        decision = _can_read_inline(state, reader, simple)
        if not decision:
            return decision
    return _hazards(state, at, simple, readers)


def _can_read_inline(state: FusionState, reader: int, simple: PointwiseNest) -> Decision:
    node = state.nodes[reader]
    buffer = simple.store.buffer
    if isinstance(node, ir.Extern):
        return no(f"{node.name} is an extern call and needs {buffer} in memory")
    if isinstance(node, ir.LoopNest):
        adds = [s for s in visit.stores(node.body) if s.combines and s.buffer == buffer]
        return no(f"{node.name} adds to {buffer}") if adds else yes("it is a loop nest")
    if isinstance(node, ir.Gemm) and buffer not in (node.a.buffer, node.b.buffer):
        return yes("it is an operand of the epilogue")
    return can_read_through(node, simple)


def _hazards(state: FusionState, at: int, simple: PointwiseNest, readers: set[int]) -> Decision:
    """No reader may come after a write to what the producer reads."""
    for name in state.reads[at]:
        if not state.is_mutable(name):
            continue
        for writer in state.writers[name]:
            if writer == at or state.rank[writer] < state.rank[at]:
                continue
            for reader in readers:
                if reader == writer:
                    if not _same_elements(state, reader, simple, name):
                        return no(f"{state.nodes[reader].name} overwrites {name} elsewhere")
                elif state.rank[reader] > state.rank[writer]:
                    return no(f"{name} is overwritten before {state.nodes[reader].name}")
    return yes("no reader comes after a write to its inputs")


def _same_elements(state: FusionState, reader: int, simple: PointwiseNest, name: str) -> bool:
    """Whether the reader writes ``name`` only where, at the same point, it would read it."""
    node = state.nodes[reader]
    if not isinstance(node, ir.LoopNest):
        return False
    user = pointwise(node)
    if user is None or user.store.buffer != name:
        return False
    if mixed_radix(user.store.index, node.axes) is None:
        return False
    wanted = _positions(simple, name)
    loads = [e for e in visit.loads(node.body) if e.buffer == simple.store.buffer]
    own = [e for e in visit.loads(node.body) if e.buffer == name]
    if any(e.index != user.store.index for e in own):
        return False
    for load in loads:
        at = invert_index(simple.store.index, simple.nest.axes, load.index)
        if at is None:
            return False
        if any(p.substitute(dict(at)) != user.store.index for p in wanted):
            return False
    return True


def _positions(simple: PointwiseNest, name: str) -> list[Index]:
    return [e.index for e in visit.loads(simple.nest.body) if e.buffer == name]
