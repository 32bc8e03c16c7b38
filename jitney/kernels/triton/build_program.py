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
from jitney.kernels.triton.emit_node import emit_node, emit_together
from jitney.kernels.triton.kernel_variants import Variants, node_variants
from jitney.kernels.triton.launch_plan import LaunchPlan, plan_launches
from jitney.kernels.triton.tune import Tuner
from jitney.kernels.triton.tune_program import Variant, fastest_variants
from jitney.loops.ir import Attention, Extern, Gemm, LoopProgram, Node, Together
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
    kernels = KernelBuild(target, cache, count - externs)
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
        if isinstance(node, Attention) and can_split_decode(node):
            splits = split_count(node, target.multiprocessors)
            if splits > 1:  # room for twice as many, which a tuner may find faster
                scratch.append(scratch_of(node, splits if tuner is None else 2 * splits))
            sources[node.name] = emit_decode_attention(node, splits)
        elif isinstance(node, Together):
            sources[node.name] = emit_together(node, target, fixed)
        else:
            sources[node.name] = (emit_node(node, target, fixed),)
        if tuner is None:
            kernels.give(sources[node.name])
        else:
            variants[node.name] = node_variants(node, target, fixed)
    if tuner is not None:
        sources |= fastest_variants(program, scratch, variants, tuner, target, cache)
        kernels.give([source for several in sources.values() for source in several])
    return sources, scratch


def _multiplies(node: Node) -> bool:
    """Whether a node's kernel contains matrix products."""
    if isinstance(node, Together):
        return any(isinstance(part, Gemm) for part in node.nests)
    return isinstance(node, Gemm | Attention)


def never_written(program: LoopProgram) -> frozenset[str]:
    """Inputs and constants that stay as they are while the program runs: kernels may read them
    before the kernels they follow have ended."""
    written = {name for node in program.nodes for name in writes(node)}
    given = {b.name for b in program.buffers if b.kind in ("input", "constant")}
    return frozenset(given - written)
