"""Checks run before the first write to an input, and the first call of an op of the program's own,
so that a bad index leaves the caller's tensors as they were, and eager, which then runs, calls the
op once."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.drop_dead import live_block

_TORCHS = ("aten.", "prims.")
_KNOWN = (*_TORCHS, "jitney.")


def hoist_checks(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with range checks moved before the first write to an input and the first call of
    an author's op, as far as what they read allows; out of a nest that does more, for they mostly
    read what is given, and it what is computed. Programs that have neither stay as they are."""
    checks = {b.name for b in program.buffers if b.kind == "check"}
    inputs = {b.name for b in program.buffers if b.kind == "input"}
    first = next(
        (
            k
            for k, node in enumerate(program.nodes)
            if _is_authors(node) or inputs.intersection(visit.writes(node))
        ),
        None,
    )
    if not checks or first is None:
        return program
    behind = (part for node in program.nodes[first + 1 :] for part in _parts(node, checks))
    nodes = [*program.nodes[: first + 1], *behind]
    for at in range(first + 1, len(nodes)):
        if not checks.intersection(visit.writes(nodes[at])):
            continue
        wanted = _needed(nodes, first, at)
        if wanted is None:
            continue
        moved = [nodes[k] for k in wanted]
        rest = [nodes[k] for k in range(first, at + 1) if k not in wanted]
        nodes[first : at + 1] = [*moved, *rest]
        first += len(moved)
    return replace(program, nodes=tuple(nodes))


def call_before_check(program: ir.LoopProgram) -> str | None:
    """An author's op that is called before the last check has been made: if that one fails, eager
    would call the op again."""
    nodes = _until_last_check(program)
    return next((n.target for n in nodes if isinstance(n, ir.Extern) and _is_authors(n)), None)


def _until_last_check(program: ir.LoopProgram) -> tuple[ir.Node, ...]:
    checks = {b.name for b in program.buffers if b.kind == "check"}
    made = [k for k, node in enumerate(program.nodes) if checks.intersection(visit.writes(node))]
    return program.nodes[: max(made, default=-1) + 1]


def _is_authors(node: ir.Node) -> bool:
    return isinstance(node, ir.Extern) and not node.target.startswith(_KNOWN)


def _parts(node: ir.Node, checks: set[str]) -> tuple[ir.Node, ...]:
    """A nest's checks, and what else it does; a node as it is where its checks read what it writes
    itself, or it is no nest."""
    writes = set(visit.writes(node))
    others = writes - checks
    if not isinstance(node, ir.LoopNest) or not checks & writes or not others:
        return (node,)
    check = replace(node, name=f"{node.name}_check", body=live_block(node.body, checks))
    if others.intersection(visit.reads(check)):
        return (node,)
    return check, replace(node, body=live_block(node.body, others))


def written_before_checks(program: ir.LoopProgram) -> tuple[int, ...]:
    """The positions of the arguments that are written before the last check has been made, and
    whose old values the program reads: run again, it would read new ones. (A cache that is written
    at a place, and read only then, is written the same again: a copy of it would cost more than
    the step that fills it.)"""
    seen: set[str] = set()
    early: set[str] = set()
    for node in _until_last_check(program):
        seen.update(visit.reads(node))
        early.update(seen.intersection(visit.writes(node)))
    return tuple(k for k, name in enumerate(program.arguments) if name in early)


def writes_follow_calls(program: ir.LoopProgram) -> bool:
    """Whether inputs are written behind every call of torch's, which may raise: then nothing has
    been done that running again would do twice. No, where it calls what is not torch's."""
    inputs = {b.name for b in program.buffers if b.kind == "input"}
    calls = [k for k, node in enumerate(program.nodes) if isinstance(node, ir.Extern)]
    nodes = program.nodes[: max(calls, default=-1) + 1]
    own = any(isinstance(n, ir.Extern) and not n.target.startswith(_TORCHS) for n in nodes)
    return bool(calls) and not own and inputs.isdisjoint(w for n in nodes for w in visit.writes(n))


def _needed(nodes: list[ir.Node], first: int, at: int) -> list[int] | None:
    """The nodes from ``first`` on that must run for node ``at``, itself included, in order; None
    if one of them cannot run before the others up to ``at``."""
    wanted, reads = [at], set(visit.reads(nodes[at]))
    writes = set(visit.writes(nodes[at]))
    for k in range(at - 1, first - 1, -1):
        made = set(visit.writes(nodes[k]))
        if reads & made:
            if k == first or isinstance(nodes[k], ir.Extern):
                return None
            wanted.append(k)
            reads |= set(visit.reads(nodes[k]))
            writes |= made
        elif writes.intersection((*made, *visit.reads(nodes[k]))):
            return None
    return wanted[::-1]
