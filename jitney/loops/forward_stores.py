"""A value that a nest has just stored and loads again stays in a register."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.fusion_state import FusionState
from jitney.loops.index import Index


def forward_stores(body: tuple[ir.Stmt, ...], state: FusionState) -> tuple[ir.Stmt, ...]:
    """Loads of what the same block has just stored at the same index become the value itself."""
    loaded = {e.buffer for e in visit.loads(body)}
    values: dict[str, tuple[Index, ir.Expr]] = {}
    out: list[ir.Stmt] = []
    for stmt in body:
        new = _forwarded(stmt, values) if values else stmt
        inner = {s.buffer for s in visit.stores((new,))}
        for name in inner:
            values.pop(name, None)
        if isinstance(new, ir.Store) and new.buffer in loaded and new.mask is None:
            if new.mode == "set":
                if not isinstance(new.value, ir.Ref | ir.Const):
                    name = state.fresh(new.buffer)
                    out.append(ir.Let(name, new.value))
                    new = replace(new, value=ir.Ref(name, new.value.dtype))
                values[new.buffer] = (new.index, new.value)
        out.append(new)
    return tuple(out)


def _forwarded(stmt: ir.Stmt, values: dict[str, tuple[Index, ir.Expr]]) -> ir.Stmt:
    """The statement with loads of known values replaced, down to inner loops."""

    def leaf(e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Load) and e.buffer in values and e.index == values[e.buffer][0]:
            value = values[e.buffer][1]
            if e.mask is None:
                return value
            return ir.Op("where", (e.mask, value, ir.Const(e.other, e.dtype)), e.dtype)
        return e

    overwritten = {s.buffer for s in visit.stores((stmt,))} & set(values)
    if overwritten and isinstance(stmt, ir.Loop | ir.Reduce):
        values = {k: v for k, v in values.items() if k not in overwritten}
    return visit.map_stmt(stmt, leaf)


def drop_dead_stores(state: FusionState, at: int) -> None:
    """Takes out stores to temps that nothing reads any more."""
    node = state.nodes[at]
    dead = {
        name
        for name in state.writes[at]
        if state.is_private(name) and not state.readers.get(name) and state.producer(name) == at
    }
    if not dead:
        return
    if isinstance(node, ir.LoopNest):
        state.replace(at, replace(node, body=_without(node.body, dead)))
    elif isinstance(node, ir.Gemm):
        state.replace(at, replace(node, epilogue=_without(node.epilogue, dead)))


def _without(body: tuple[ir.Stmt, ...], dead: set[str]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Store) and stmt.buffer in dead:
            continue
        if isinstance(stmt, ir.Loop):
            inner = _without(stmt.body, dead)
            if not inner:
                continue
            stmt = ir.Loop(stmt.axes, inner)
        elif isinstance(stmt, ir.Reduce):
            stmt = replace(stmt, body=_without(stmt.body, dead))
        out.append(stmt)
    return tuple(out)
