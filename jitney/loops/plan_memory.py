"""Where each temp buffer lives in the workspace."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir
from jitney.loops.index import Index, index

ALIGNMENT = 64


def plan_memory(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with ``slots`` and ``workspace`` filled in."""
    offset = index(0)
    slots: list[tuple[str, Index]] = []
    for buffer in program.buffers:
        if buffer.kind == "temp":
            slots.append((buffer.name, offset))
            offset = offset + aligned(size_in_bytes(buffer))
    return replace(program, slots=tuple(slots), workspace=offset)


def size_in_bytes(buffer: ir.Buffer) -> Index:
    """Bytes from a buffer's first element to its last."""
    if any(n.is_const and n.const == 0 for n in buffer.shape):
        return index(0)
    span = index(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        span = span + (size - 1) * stride
    return span * buffer.dtype.itemsize


def aligned(size: Index) -> Index:
    """The size rounded up to `ALIGNMENT`."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
