"""What a call of a built program does, as data that any process with such a GPU can load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jitney.kernels.triton.decode_attention import Scratch
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.load_binary import Binary
from jitney.loops import visit
from jitney.loops.index import Dim, Index
from jitney.loops.ir import Buffer, Extern, LoopProgram, Node, ProgramOutput, ScalarArg
from jitney.loops.read_sizes import ReadSize, sizes_to_read

Argument = str | Dim | ScalarArg

#: Bytes; tensor memory descriptors need 128.
SCRATCH_ALIGNMENT = 256


@dataclass(frozen=True)
class KernelCall:
    """One launch. ``kernel``: which binary; ``parameters``: names of buffers, sizes, scalars;
    ``scratch``: the name of its own part of the workspace ("": it needs none)."""

    kernel: str
    grid: tuple[Index, ...]
    parameters: tuple[str, ...]
    scratch: str = ""


@dataclass(frozen=True)
class Segment:
    """Kernel calls ``first`` to ``first + count``, issued by one native call."""

    first: int
    count: int


Step = Segment | Extern


@dataclass(frozen=True)
class LaunchPlan:
    """``sizes``: symbolic ones to read off the arguments. ``born`` and ``dead``: per step, buffers
    that get memory before it, and whose memory is free after it. ``offsets``: where in the
    workspace (of ``workspace`` bytes) each temporary lies. ``written``: what any node writes."""

    arguments: tuple[Argument, ...]
    sizes: tuple[ReadSize, ...]
    buffers: tuple[Buffer, ...]
    outputs: tuple[ProgramOutput, ...]
    calls: tuple[KernelCall, ...]
    steps: tuple[Step, ...]
    born: tuple[tuple[str, ...], ...]
    dead: tuple[tuple[str, ...], ...]
    offsets: Mapping[str, Index]
    workspace: Index
    written: frozenset[str]
    binaries: Mapping[str, Binary]


def plan_launches(
    program: LoopProgram,
    sources: Mapping[str, tuple[KernelSource, ...]],
    binaries: Mapping[str, Binary],
    scratch: Iterable[Scratch] = (),
) -> LaunchPlan:
    """The plan of a program whose nodes became ``sources``, compiled to ``binaries``."""
    memory = _Workspace(program)
    for extra in scratch:
        memory.add(extra.name, 4 * extra.elements)
    calls: list[KernelCall] = []
    steps: list[Step] = []
    nodes: list[list[Node]] = []
    for node in program.nodes:
        if isinstance(node, Extern):
            steps.append(node)
            nodes.append([node])
            continue
        first = len(calls)
        for source in sources[node.name]:
            names = tuple(p.name for p in source.parameters)
            own, bytes_ = "", binaries[source.key].scratch  # of each program
            if bytes_:  # not shared: the next launch may start early
                own = f"{node.name}_scratch{len(calls)}"
                memory.add(own, math.prod(map(int, source.grid)) * bytes_)
            calls.append(KernelCall(source.key, source.grid, names, own))
        last, added = steps[-1] if steps else None, len(calls) - first
        if isinstance(last, Segment):
            steps[-1] = Segment(last.first, last.count + added)
            nodes[-1].append(node)
        else:
            steps.append(Segment(first, added))
            nodes.append([node])
    return LaunchPlan(
        arguments=program.arguments,
        sizes=sizes_to_read(program, program.arguments),
        buffers=program.buffers,
        outputs=program.outputs,
        calls=tuple(calls),
        steps=tuple(steps),
        born=_born_before(program, nodes),
        dead=_dead_after(program, nodes),
        offsets=memory.offsets,
        workspace=memory.size,
        written=frozenset(name for node in program.nodes for name in visit.writes(node)),
        binaries=binaries,
    )


class _Workspace:
    """Where the temporaries lie, and after them descriptors and partial sums."""

    def __init__(self, program: LoopProgram) -> None:
        self.offsets, self.size = dict(program.slots), _rounded(program.workspace)

    def add(self, name: str, size: int) -> None:
        """Room of ``size`` bytes for ``name``."""
        self.offsets[name] = self.size
        self.size = _rounded(self.size + size)


def _rounded(size: Index) -> Index:
    return (size + (SCRATCH_ALIGNMENT - 1)) // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT


def _born_before(program: LoopProgram, steps: Sequence[list[Node]]) -> tuple[tuple[str, ...], ...]:
    waiting = {b.name for b in program.buffers if b.kind in ("large", "output")}
    born: list[tuple[str, ...]] = []
    for nodes in steps:
        found = waiting & {b for n in nodes for b in visit.writes(n)}
        born.append(tuple(sorted(found)))
        waiting -= found
    return tuple(born)


def _dead_after(program: LoopProgram, steps: Sequence[list[Node]]) -> tuple[tuple[str, ...], ...]:
    """Tensors of no later use, per step: the memory of those nobody else holds is free."""
    needed = visit.returned(program.outputs)
    freed = {b.name for b in program.buffers if b.kind in ("input", "large", "extern")}
    dead: list[tuple[str, ...]] = []
    for nodes in reversed(steps):
        touched = {b for n in nodes for b in (*visit.reads(n), *visit.writes(n))}
        dead.append(tuple(sorted((touched & freed) - needed)))
        needed |= touched
    return tuple(dead[::-1])
