"""Removes nodes whose results nobody reads."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.index import Value


def drop_dead(program: ir.LoopProgram) -> ir.LoopProgram:
    """Without stores to temps that nothing reads, Lets and reductions nobody uses, and nodes
    left with nothing to do. Extern calls stay: they may check or print."""
    needed = visit.returned(program.outputs)
    needed |= {b.name for b in program.buffers if b.kind != "temp"}
    nodes: list[ir.Node] = []
    for node in reversed(program.nodes):
        kept = _alive(node, needed)
        if kept is not None:
            nodes.append(kept)
            needed.update(visit.reads(kept))
    nodes.reverse()
    used = {n for node in nodes for n in (*visit.reads(node), *visit.writes(node))}
    buffers = tuple(b for b in program.buffers if b.kind != "temp" or b.name in used)
    return replace(program, nodes=tuple(nodes), buffers=buffers)


def _alive(node: ir.Node, needed: set[str]) -> ir.Node | None:
    if isinstance(node, ir.LoopNest):
        own = needed | {e.buffer for e in visit.loads(node.body)}
        body = live_block(node.body, own)
        return None if not body else node if body == node.body else replace(node, body=body)
    if isinstance(node, ir.Gemm):
        loaded = {e.buffer for e in visit.loads(node.row_prologue + node.epilogue)}
        body = live_block(node.epilogue, needed | loaded)
        return None if not body else node if body == node.epilogue else replace(node, epilogue=body)
    if isinstance(node, ir.Attention):
        if node.logsumexp is not None and node.logsumexp.buffer not in needed:
            node = replace(node, logsumexp=None)
        return node if needed & set(visit.writes(node)) else None
    return node


def live_block(body: tuple[ir.Stmt, ...], needed: set[str]) -> tuple[ir.Stmt, ...]:
    """The statements that store into a needed buffer, and what those use."""
    return tuple(_live(body, needed, set()))


def _live(body: tuple[ir.Stmt, ...], needed: set[str], names: set[str]) -> list[ir.Stmt]:
    """Walks backwards; ``names`` collects what later statements use."""
    out: list[ir.Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, ir.Let):
            if stmt.name not in names:
                continue
        elif isinstance(stmt, ir.Store):
            if stmt.buffer not in needed:
                continue
            _use_index(stmt.index.atoms(), names)
        elif isinstance(stmt, ir.Loop):
            inner = tuple(_live(stmt.body, needed, names))
            if not inner:
                continue
            stmt = ir.Loop(stmt.axes, inner)
        else:
            results = tuple(r for r in stmt.results if not names.isdisjoint(r.names))
            _use_exprs(tuple(r.value for r in results), names)
            inner = tuple(_live(stmt.body, needed, names))
            if not results:
                if inner:
                    out.append(ir.Loop(stmt.axes, inner))
                continue
            stmt = ir.Reduce(stmt.axes, inner, results)
        if isinstance(stmt, ir.Let | ir.Store):
            _use_exprs(visit.stmt_exprs(stmt), names)
        out.append(stmt)
    out.reverse()
    return out


def _use_exprs(exprs: tuple[ir.Expr, ...], names: set[str]) -> None:
    for expr in visit.expr_nodes(exprs):
        if isinstance(expr, ir.Ref):
            names.add(expr.name)
        elif isinstance(expr, ir.Load | ir.IndexValue):
            _use_index(expr.index.atoms(), names)


def _use_index(atoms: frozenset[object], names: set[str]) -> None:
    names.update(a.name for a in atoms if isinstance(a, Value))
