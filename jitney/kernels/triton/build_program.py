"""A LoopProgram as Triton kernels and a plan of their launches."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.disk_cache import DiskCache
from jitney.events import log
from jitney.kernels.triton.compile_kernels import KernelBuild
from jitney.kernels.triton.decode_attention import (
    Scratch,
    can_split_decode,
    emit_decode_attention,
    scratch_of,
    split_count,
)
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource, join_sources
from jitney.kernels.triton.kernel_variants import Variants, node_variants
from jitney.kernels.triton.launch_plan import LaunchPlan, plan_launches
from jitney.kernels.triton.schedule_gemm import (
    can_tile_gemm,
    schedule_gemm,
    schedule_persistent,
)
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.kernels.triton.short_attention import emit_short_attention
from jitney.kernels.triton.tune import Tuner
from jitney.kernels.triton.tune_program import Variant, fastest_variants
from jitney.loops.ir import Attention, Extern, Gemm, LoopNest, LoopProgram, Node, Together
from jitney.loops.target import Target
from jitney.loops.visit import writes


@dataclass(frozen=True)
class ProgramBuild:
    """A program whose kernels are being built."""

    program: LoopProgram
    sources: dict[str, Variant]
    scratch: list[Scratch]
    kernels: KernelBuild

    def finish(self) -> LaunchPlan:
        """The plan; waits for the kernels."""
        return plan_launches(self.program, self.sources, self.kernels.finish(), self.scratch)


def start_program(
    program: LoopProgram,
    target: Target,
    cache: DiskCache | None = None,
    tuner: Tuner | None = None,
) -> ProgramBuild:
    """Begins to compile every node that is not an extern call for ``target`` (`choose_templates`
    and `products_as_nests` leave only what has a kernel here). ``tuner``: measures what there is to
    choose from, on this GPU; without one the models decide and no GPU is needed."""
    count = sum(len(n.nests) if isinstance(n, Together) else 1 for n in program.nodes)
    externs = sum(isinstance(n, Extern) for n in program.nodes)
    kernels = KernelBuild(target.capability, cache, count - externs)
    with log.stage("emit"):
        sources, scratch = _emit_all(program, target, cache, tuner, kernels)
    kernels.end()
    return ProgramBuild(program, sources, scratch, kernels)


def _emit_all(
    program: LoopProgram,
    target: Target,
    cache: DiskCache | None,
    tuner: Tuner | None,
    kernels: KernelBuild,
) -> tuple[dict[str, Variant], list[Scratch]]:
    """The kernels of each node, by its name, and the memory some of them need besides. What is
    emitted is being built at once; products, which take longest, come first."""
    sources: dict[str, Variant] = {}
    variants: dict[str, Variants] = {}
    scratch: list[Scratch] = []
    fixed = never_written(program)
    for node in sorted(program.nodes, key=_multiplies, reverse=True):
        if isinstance(node, Extern):
            continue
        if isinstance(node, Together):
            sources[node.name] = emit_together(node, target, fixed)
        elif isinstance(node, Attention) and can_split_decode(node):
            splits = split_count(node, target.multiprocessors)
            sources[node.name] = emit_decode_attention(node, splits)
            if splits > 1:
                scratch.append(scratch_of(node, splits))
        elif tuner is not None:
            variants[node.name] = node_variants(node, target, fixed)
        else:
            sources[node.name] = (_emit(node, target, fixed),)
        kernels.give(sources.get(node.name, ()))
    if tuner is not None:
        chosen = fastest_variants(program, variants, tuner, target.capability, cache)
        kernels.give([source for several in chosen.values() for source in several])
        sources |= chosen
    return sources, scratch


def _multiplies(node: Node) -> bool:
    """Whether a node's kernel has matrix products in it."""
    if isinstance(node, Together):
        return any(isinstance(part, Gemm) for part in node.nests)
    return isinstance(node, Gemm | Attention)


def _emit(
    node: LoopNest | Gemm | Attention,
    target: Target,
    fixed: frozenset[str],
    beside: int = 1,
) -> KernelSource:
    """The kernel the models choose."""
    if isinstance(node, LoopNest):
        return emit_nest(node, schedule_nest(node, target), fixed)
    if isinstance(node, Attention):
        return emit_short_attention(node)
    if not can_tile_gemm(node):
        return emit_persistent_gemm(node, schedule_persistent(node, target))
    return emit_gemm(node, schedule_gemm(node, target, beside, split=False))


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
    parts = [_emit(nest, target, fixed, len(group.nests)) for nest in group.nests]
    flat = tuple(p for p in parts if len(p.grid) == 1)
    rest = tuple(p for p in parts if len(p.grid) > 1)
    return (join_sources(group.name, flat), *rest) if len(flat) > 1 else tuple(parts)
