"""A LoopProgram as Triton kernels and a plan of their launches."""

from __future__ import annotations

from collections.abc import Mapping

from jitney.disk_cache import DiskCache
from jitney.errors import CompilerBug
from jitney.kernels.triton.compile_kernels import compile_kernels
from jitney.kernels.triton.decode_attention import (
    Scratch,
    emit_decode_attention,
    scratch_of,
    split_count,
)
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource, join_sources
from jitney.kernels.triton.launch_plan import LaunchPlan, plan_launches
from jitney.kernels.triton.schedule_gemm import schedule_gemm
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops.ir import Attention, Extern, Gemm, LoopNest, LoopProgram, Together
from jitney.loops.target import Target
from jitney.loops.visit import writes

#: Schedules chosen by measurement, by nest; a nest that is not there gets `schedule_nest`'s.
Tuned = Mapping[LoopNest, Schedule]


def build_program(
    program: LoopProgram,
    target: Target,
    cache: DiskCache | None = None,
    tuned: Tuned | None = None,
) -> LaunchPlan:
    """Compiles every node that is not an extern call for ``target`` (`choose_templates` and
    `products_as_nests` leave only what has a kernel here). Needs no GPU."""
    sources: dict[str, tuple[KernelSource, ...]] = {}
    scratch: list[Scratch] = []
    fixed = never_written(program)
    for node in program.nodes:
        if isinstance(node, LoopNest):
            schedule = (tuned or {}).get(node) or schedule_nest(node, target)
            sources[node.name] = (emit_nest(node, schedule, fixed),)
        elif isinstance(node, Gemm):
            sources[node.name] = (_emit_gemm(node, target),)
        elif isinstance(node, Together):
            sources[node.name] = emit_together(node, target, fixed)
        elif isinstance(node, Attention):
            splits = split_count(node, target.multiprocessors)
            sources[node.name] = emit_decode_attention(node, splits)
            if splits > 1:
                scratch.append(scratch_of(node, splits))
        elif not isinstance(node, Extern):
            raise CompilerBug(f"{type(node).__name__} {node.name} reached the Triton backend")
    every = [source for several in sources.values() for source in several]
    binaries = compile_kernels(every, target.capability, cache)
    return plan_launches(program, sources, binaries, scratch)


def _emit_gemm(gemm: Gemm, target: Target, beside: int = 1) -> KernelSource:
    return emit_gemm(gemm, schedule_gemm(gemm, target, beside, split=False))


def never_written(program: LoopProgram) -> frozenset[str]:
    """Inputs and constants that stay as they are while the program runs: kernels may read them
    before the kernels they follow have ended."""
    written = {name for node in program.nodes for name in writes(node)}
    given = {b.name for b in program.buffers if b.kind in ("input", "constant")}
    return frozenset(given - written)


def emit_together(
    group: Together, target: Target, fixed: frozenset[str] = frozenset()
) -> tuple[KernelSource, ...]:
    """One kernel for the group; nests whose grids have more dimensions keep their own."""
    parts = [
        _emit_gemm(nest, target, len(group.nests))
        if isinstance(nest, Gemm)
        else emit_nest(nest, schedule_nest(nest, target), fixed)
        for nest in group.nests
    ]
    flat = tuple(p for p in parts if len(p.grid) == 1)
    rest = tuple(p for p in parts if len(p.grid) > 1)
    return (join_sources(group.name, flat), *rest) if len(flat) > 1 else tuple(parts)
