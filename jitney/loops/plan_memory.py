"""Where each temp buffer lives in the workspace.

Buffers alive at the same time get places of their own; places are handed on when their buffer is
dead. Static sizes: best fit among free gaps, neighbours joined again. Symbolic sizes: a place is
handed on to a buffer of an equal size expression.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.index import Index, index, is_empty

ALIGNMENT = 64


def plan_memory(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with ``slots`` and ``workspace`` filled in.

    A node's result may take the place of an operand that dies there only when the node reads and
    writes the same elements in each iteration (`_in_place`).
    """
    table = program.buffer_table()
    born, dies = _lifetimes(program)
    by_birth: dict[int, list[str]] = {}
    by_death: dict[int, list[str]] = {}
    for name in born:
        by_birth.setdefault(born[name], []).append(name)
        by_death.setdefault(dies[name], []).append(name)
    sizes = {name: size_in_bytes(table[name]) for name in born}
    static = _Gaps()
    symbolic = _EqualSizes()
    offsets: dict[str, int] = {}
    for at, node in enumerate(program.nodes):
        ending = by_death.get(at, [])
        taken_over = _in_place(node, ending, by_birth.get(at, []), table)
        for name in by_birth.get(at, []):
            if not sizes[name].is_const:
                symbolic.place(name, sizes[name])
            elif name in taken_over:
                offsets[name] = offsets[taken_over[name]]
            else:
                offsets[name] = static.take(_rounded(int(sizes[name])))
        inherited = set(taken_over.values())
        for name in ending:
            if not sizes[name].is_const:
                symbolic.free(name, sizes[name])
            elif name not in inherited:
                static.give(offsets[name], _rounded(int(sizes[name])))
    slots = {name: index(offset) for name, offset in offsets.items()}
    slots, workspace = symbolic.above(slots, index(static.top))
    order = [b.name for b in program.buffers if b.name in slots]
    return replace(program, slots=tuple((n, slots[n]) for n in order), workspace=workspace)


def _lifetimes(program: ir.LoopProgram) -> tuple[dict[str, int], dict[str, int]]:
    """First and last node that touches each temp."""
    temps = {b.name for b in program.buffers if b.kind == "temp"}
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    for at, node in enumerate(program.nodes):
        for name in (*visit.writes(node), *visit.reads(node)):
            if name in temps:
                born.setdefault(name, at)
                dies[name] = at
    return born, dies


def _in_place(
    node: ir.Node, ending: list[str], starting: list[str], table: dict[str, ir.Buffer]
) -> dict[str, str]:
    """Result -> operand whose place it takes: a nest without inner loops in which every access
    of both, loads before stores, is at one and the same index."""
    if not isinstance(node, ir.LoopNest) or not ending or not starting:
        return {}
    if any(isinstance(s, ir.Loop | ir.Reduce) for s in node.body):
        return {}
    stored = {s.buffer: s for s in visit.stores(node.body)}
    if any(s.mask is not None or s.mode != "set" for s in stored.values()):
        return {}
    if len(visit.stores(node.body)) != 1:
        return {}
    found: dict[str, str] = {}
    loaded: dict[str, set[Index]] = {}
    for load in visit.loads(node.body):
        loaded.setdefault(load.buffer, set()).add(load.index)
    for name in starting:
        for operand in ending:
            if name not in stored or loaded.get(operand) != {stored[name].index}:
                continue
            if _same_storage(table[name], table[operand]) and operand not in found.values():
                found[name] = operand
                break
    return found


def _same_storage(a: ir.Buffer, b: ir.Buffer) -> bool:
    return a.dtype.itemsize == b.dtype.itemsize and size_in_bytes(a) == size_in_bytes(b)


class _Gaps:
    """Free byte ranges below ``top``, sorted, never touching one another."""

    def __init__(self) -> None:
        self.top = 0
        self.free: list[tuple[int, int]] = []  # (offset, size)

    def take(self, size: int) -> int:
        """The smallest gap that fits, else new space at the top (grown from a gap below it)."""
        if not size:
            return 0
        fitting = [(gap, offset) for offset, gap in self.free if gap >= size]
        if fitting:
            gap, offset = min(fitting)
            self.free.remove((offset, gap))
            if gap > size:
                insort(self.free, (offset + size, gap - size))
            return offset
        offset = self.top
        if self.free and sum(self.free[-1]) == self.top:
            offset = self.free.pop()[0]
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Returns a range, joined with its neighbours."""
        if not size:
            return
        joined: list[tuple[int, int]] = []
        for start, length in self.free:
            if start + length == offset:
                offset, size = start, size + length
            elif offset + size == start:
                size += length
            else:
                joined.append((start, length))
        insort(joined, (offset, size))
        self.free = joined


class _EqualSizes:
    """Places for symbolic sizes, handed on between equal expressions and stacked at the end."""

    def __init__(self) -> None:
        self.places: list[Index] = []
        self.of: dict[str, int] = {}
        self.idle: dict[Index, list[int]] = {}

    def place(self, name: str, size: Index) -> None:
        """Gives the buffer an idle place of its size, or a new one."""
        waiting = self.idle.get(size)
        if waiting:
            self.of[name] = waiting.pop()
        else:
            self.of[name] = len(self.places)
            self.places.append(size)

    def free(self, name: str, size: Index) -> None:
        """The buffer is dead; its place may be handed on."""
        self.idle.setdefault(size, []).append(self.of[name])

    def above(self, slots: dict[str, Index], base: Index) -> tuple[dict[str, Index], Index]:
        """All slots, with the symbolic places stacked from ``base`` up; and the total size."""
        offsets: list[Index] = []
        for size in self.places:
            offsets.append(base)
            base = base + aligned(size)
        return {**slots, **{name: offsets[at] for name, at in self.of.items()}}, base


def size_in_bytes(buffer: ir.Buffer) -> Index:
    """Bytes from a buffer's first element to its last."""
    if is_empty(buffer.shape):
        return index(0)
    span = index(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        span = span + (size - 1) * stride
    return span * buffer.dtype.itemsize


def aligned(size: Index) -> Index:
    """The size rounded up to `ALIGNMENT`."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
