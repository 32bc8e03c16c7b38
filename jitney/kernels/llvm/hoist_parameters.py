"""``freeze``: what a program computes from parameters alone is computed once, by one of its own.

Scales of batch norms, filters in another space, weights with another order of axes: none of them
depends on what a call is given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.drop_dead import drop_dead
from jitney.loops.plan_memory import plan_memory


def hoist_parameters(program: ir.LoopProgram) -> tuple[ir.LoopProgram, ir.LoopProgram | None]:
    """(the program without such nodes, their results being arguments after its own and counting
    as parameters; the program that gives those results, of parameters). None: nothing to hoist."""
    hoisted = _parameter_nodes(program)
    rest = tuple(n for n in program.nodes if not any(n is h for h in hoisted))
    made = {name for node in hoisted for name in visit.writes(node)}
    needed = {name for node in rest for name in visit.reads(node)}
    kept = tuple(b.name for b in program.buffers if b.name in made & needed)
    if not kept:
        return program, None
    buffers = [
        replace(b, kind="input", is_parameter=True) if b.name in kept else b
        for b in program.buffers
        if b.name not in made or b.name in kept
    ]
    main = replace(
        program,
        arguments=program.arguments + kept,
        buffers=tuple(buffers),
        nodes=tuple(_marked(n, set(kept)) for n in rest),
        slots=tuple(s for s in program.slots if s[0] not in made),
    )
    return main, _preparation(program, hoisted, kept)


def _parameter_nodes(program: ir.LoopProgram) -> list[ir.Node]:
    """Nests and products of known size that read parameters, and each other, and nothing else."""
    table = program.buffer_table()
    writers = Counter(name for node in program.nodes for name in visit.writes(node))
    steady = {b.name for b in program.buffers if b.is_parameter and not writers[b.name]}
    found: list[ir.Node] = []
    for node in program.nodes:
        reads, writes = visit.reads(node), visit.writes(node)
        if not isinstance(node, ir.LoopNest | ir.Gemm) or not reads or not steady.issuperset(reads):
            continue
        fixed = all(s.is_const for name in (*reads, *writes) for s in table[name].shape)
        if fixed and all(table[n].kind == "temp" and writers[n] == 1 for n in writes):
            steady.update(writes)
            found.append(node)
    return found


def _marked(node: ir.Node, kept: set[str]) -> ir.Node:
    if isinstance(node, ir.Gemm) and node.b.buffer in kept:
        return replace(node, b_is_parameter=True)
    return node


def _preparation(
    program: ir.LoopProgram, nodes: list[ir.Node], kept: tuple[str, ...]
) -> ir.LoopProgram:
    table = program.buffer_table()
    used = dict.fromkeys(name for n in nodes for name in (*visit.reads(n), *visit.writes(n)))
    given = tuple(name for name in used if table[name].kind == "input")
    buffers = tuple(
        replace(table[name], kind="output") if name in kept else table[name] for name in used
    )
    views = [ir.BufferView(name, table[name].shape, table[name].strides) for name in kept]
    outputs = tuple(ir.Output(view) for view in views)
    return plan_memory(drop_dead(ir.LoopProgram(given, buffers, tuple(nodes), outputs)))
