"""Fusion: fewer kernels, less memory traffic, the same values."""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir
from jitney.loops.drop_dead import drop_dead
from jitney.loops.drop_proven_checks import drop_proven_checks
from jitney.loops.fold_values import fold_values
from jitney.loops.fusion_state import FusionState
from jitney.loops.inline_producers import inline_producers
from jitney.loops.merge_nests import merge_nests
from jitney.loops.target import Target


def fuse_nests(program: ir.LoopProgram, target: Target | None = None) -> ir.LoopProgram:
    """The program with pointwise producers inlined, epilogues filled and nests merged.

    Keeps every rounding: a value that was stored in a narrow dtype is still cast to it.
    """
    state = FusionState(fold_values(program))
    inline_producers(state, target)
    merge_nests(state, target)
    nodes, buffers = state.finished()
    return drop_dead(drop_proven_checks(replace(program, nodes=nodes, buffers=buffers)))
