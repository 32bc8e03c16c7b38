"""Cuts a program into native segments and the extern calls between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jitney.loops import visit
from jitney.loops.index import Dim
from jitney.loops.ir import Extern, LoopProgram, Node, ScalarArg
from jitney.loops.read_sizes import sizes_to_read

Argument = str | Dim | ScalarArg


@dataclass(frozen=True)
class Segment:
    """Nodes that run in one native call.

    ``arguments`` in call order (buffers as tensors, sizes and scalars as Python numbers);
    ``constants``: buffers the function holds itself; ``outputs``: buffers it allocates and
    returns; every other buffer it touches lies in the workspace.
    """

    nodes: tuple[Node, ...]
    arguments: tuple[Argument, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Interpreted:
    """A node the emitters have no code for: the reference interpreter runs it, slowly."""

    node: Node
    reason: str


Apart = Extern | Interpreted
Step = Segment | Extern | Interpreted


def cut_segments(program: LoopProgram, refused: Mapping[int, str]) -> tuple[Step, ...]:
    """The steps of a program; ``refused`` maps positions of nodes without code to the reason.

    A program of native code only is one segment whose arguments are the program's and whose
    outputs are all its output buffers in order."""
    groups = _groups(program.nodes, refused)
    table = program.buffer_table()
    if len(groups) == 1 and isinstance(groups[0], list):
        outputs = [b.name for b in program.buffers if b.kind == "output"]
        return (_segment(program, tuple(groups[0]), program.arguments, outputs),)
    steps: list[Step] = []
    made = {b.name for b in program.buffers if b.kind in ("input", "constant")}
    for position, group in enumerate(groups):
        if not isinstance(group, list):
            steps.append(group)
            made |= set(_touched(node_of(group)))
            continue
        touched = list(dict.fromkeys(n for node in group for n in _touched(node)))
        outside = _used_outside(program, groups, position)
        inputs = [n for n in touched if n in made and table[n].kind != "constant"]
        outputs = [n for n in touched if n not in made and n in outside]
        numbers = [a for a in program.arguments if not isinstance(a, str)]
        numbers += [size.dim for size in sizes_to_read(program, program.arguments)]
        steps.append(_segment(program, tuple(group), (*inputs, *numbers), outputs))
        made |= set(touched)
    return tuple(steps)


def _segment(
    program: LoopProgram,
    nodes: tuple[Node, ...],
    arguments: tuple[Argument, ...],
    outputs: Iterable[str],
) -> Segment:
    table = program.buffer_table()
    touched = dict.fromkeys(n for node in nodes for n in _touched(node))
    constants = tuple(n for n in touched if table[n].kind == "constant")
    return Segment(nodes, tuple(arguments), constants, tuple(outputs))


def node_of(step: Apart) -> Node:
    """The node that runs by itself."""
    return step if isinstance(step, Extern) else step.node


def _groups(nodes: Sequence[Node], refused: Mapping[int, str]) -> list[list[Node] | Apart]:
    groups: list[list[Node] | Apart] = []
    for k, node in enumerate(nodes):
        if isinstance(node, Extern):
            groups.append(node)
        elif k in refused:
            groups.append(Interpreted(node, refused[k]))
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _touched(node: Node) -> list[str]:
    return list(dict.fromkeys((*visit.reads(node), *visit.writes(node))))


def _used_outside(
    program: LoopProgram, groups: list[list[Node] | Apart], position: int
) -> set[str]:
    """Buffers some other step or the caller needs."""
    used = visit.returned(program.outputs)
    for k, group in enumerate(groups):
        if k != position:
            for node in group if isinstance(group, list) else [node_of(group)]:
                used.update(_touched(node))
    return used
