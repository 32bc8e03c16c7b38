"""Large temporaries get memory of their own for as long as they live.

One workspace is held from a program's first node to its last. A backward graph gives back the
tensors it was handed as it goes, and needs most temporaries only when much has been given back.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.loops.ir import LoopProgram
from jitney.loops.plan_memory import plan_memory, size_in_bytes

#: Bytes of a workspace worth taking apart, and of a temporary worth an allocation.
WORKSPACE, LARGE = 256 << 20, 16 << 20


def spread_memory(program: LoopProgram) -> LoopProgram:
    """``program`` with its large temporaries of kind "large", if its workspace would be large."""
    workspace = plan_memory(program).workspace
    if not workspace.is_const or int(workspace) < WORKSPACE:
        return program
    buffers = tuple(
        replace(b, kind="large")
        if b.kind == "temp" and (size := size_in_bytes(b)).is_const and int(size) >= LARGE
        else b
        for b in program.buffers
    )
    return replace(program, buffers=buffers)
