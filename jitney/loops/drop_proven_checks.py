"""Range checks of indices that turned out to be known, as positions by ``arange`` are."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.fold_values import fold_block


def drop_proven_checks(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program without checks that can find nothing; their nests are left to `drop_dead`.

    Runs after inlining, when an index is the expression that computes it.
    """
    checks = {b.name for b in program.buffers if b.kind == "check"}
    if not checks:
        return program
    proven: set[str] = set()
    nodes: list[ir.Node] = []
    for node in program.nodes:
        if isinstance(node, ir.LoopNest) and checks.intersection(visit.writes(node)):
            body = fold_block(node.body)
            never = _never_true(body)
            gone = {
                s.buffer for s in body
                if isinstance(s, ir.Store) and s.buffer in checks and _is_false(s.value, never)
            }  # fmt: skip
            proven |= gone
            body = tuple(s for s in body if not (isinstance(s, ir.Store) and s.buffer in gone))
            node = replace(node, body=body)
        nodes.append(node)
    buffers = tuple(b for b in program.buffers if b.name not in proven)
    return replace(program, nodes=tuple(nodes), buffers=buffers)


def _never_true(body: tuple[ir.Stmt, ...]) -> set[str]:
    return {
        r.names[0]
        for s in body
        if isinstance(s, ir.Reduce)
        for r in s.results
        if r.op == "any" and _is_false(r.value, set())
    }


def _is_false(value: ir.Expr, never: set[str]) -> bool:
    if isinstance(value, ir.Ref):
        return value.name in never
    return isinstance(value, ir.Const) and value.value is False
