"""What the compile of a graph does for a GPU only: fusion for tiles, then Triton kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.config import Config
from jitney.disk_cache import open_cache
from jitney.errors import Unsupported
from jitney.kernels.philox_state import prepares_draws
from jitney.kernels.triton.build_program import start_program
from jitney.kernels.triton.choose_templates import Templates, choose_templates
from jitney.kernels.triton.fold_into_attention import fold_into_attention
from jitney.kernels.triton.gpu_program import GpuProgram
from jitney.kernels.triton.launch_plan import LaunchPlan
from jitney.kernels.triton.pair_products import pair_products
from jitney.kernels.triton.positions_as_heads import positions_as_heads
from jitney.kernels.triton.products_as_nests import products_as_nests
from jitney.kernels.triton.tune import open_tuner
from jitney.kernels.triton.tune_templates import fastest_templates
from jitney.loops.fold_one_hot import fold_one_hot
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.group_launches import group_launches
from jitney.loops.ir import Dim, Extern, LoopProgram, ScalarArg
from jitney.loops.join_column_sums import join_column_sums
from jitney.loops.online_softmax import online_softmax
from jitney.loops.plan_memory import plan_memory
from jitney.loops.read_sizes import sizes_to_read
from jitney.loops.recompute_small_rows import recompute_small_rows
from jitney.loops.simplify_nest import simplify_nests
from jitney.loops.split_reduction import split_reduction
from jitney.loops.spread_memory import spread_memory
from jitney.loops.target import Target
from jitney.loops.verify import check_step
from jitney.loops.visit import reads, writes
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import ReplayFacts

OLDEST = (7, 5)  # compute capability that Triton compiles for
BF16 = (8, 0)  # compute capability from which there is bfloat16
#: Parts of the names of ops that copy to the host or wait for the GPU in between.
WAITS = ("linalg", "svd", "eig", "lstsq", "nonzero", "unique", "masked_select", "bincount",
         "local_scalar")  # fmt: skip


@dataclass(frozen=True)
class GpuCode:
    """Kernels and their launches, as data; ``replay``: facts for CUDA graphs, None without."""

    plan: LaunchPlan
    replay: ReplayFacts | None

    def load(self, constants: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The callable of a program with these constants."""
        call = GpuProgram(self.plan, constants)
        return call if self.replay is None else ReplayedProgram(call, self.replay)


def check_runnable(program: LoopProgram, target: Target) -> None:
    """Raises Unsupported where our kernels cannot run ``program`` on the device: eager can, or its
    error says best what is wrong."""
    if importlib.util.find_spec("triton") is None:
        raise Unsupported("no-triton", "Triton is not installed", "pip install triton")
    if target.capability < OLDEST:
        have, need = (".".join(map(str, c)) for c in (target.capability, OLDEST))
        raise Unsupported("old-gpu", f"{target.name} has compute capability {have}, not {need}")
    if target.capability < BF16 and any(b.dtype == torch.bfloat16 for b in program.buffers):
        raise Unsupported("no-bf16", f"{target.name} has no bfloat16", "use float16 or float32")
    places = {b.device for b in program.buffers if b.device.type == "cuda"}
    if len(places) > 1:
        named = ", ".join(sorted(map(str, places)))
        raise Unsupported("several-gpus", f"one graph computes on {named}")


def transform(program: LoopProgram, target: Target, options: Config | None = None) -> LoopProgram:
    """All passes between lowering and the memory plan; with a tuner, templates are measured."""
    program = positions_as_heads(program)
    check_step(program, "taking positions as heads")
    tuner = None if options is None else open_tuner(target.name, options)
    if tuner is None:
        return with_templates(program, target, {})
    cache = None if options is None else open_cache(options)

    def build(excerpt: LoopProgram, templates: Templates) -> Callable[[], LaunchPlan]:
        planned = plan_memory(with_templates(excerpt, target, templates))
        return start_program(planned, target, cache).finish

    return with_templates(program, target, fastest_templates(program, target, tuner, build))


def with_templates(program: LoopProgram, target: Target, measured: Templates) -> LoopProgram:
    """The passes, with the ``measured`` templates; where there is none, those that the cost model
    chooses."""
    program = choose_templates(program, target, measured)
    check_step(program, "choosing templates")
    program = pair_products(program)
    check_step(program, "pairing products")
    program = products_as_nests(fuse_nests(program, target), target)
    check_step(program, "fusion")
    program = simplify_nests(fuse_nests(program, target))
    check_step(program, "fusion with products as nests")
    program = fold_one_hot(program)
    check_step(program, "folding one-hot sums")
    program = recompute_small_rows(program)
    check_step(program, "recomputing small rows")
    program = join_column_sums(program, target)
    check_step(program, "joining column sums")
    program = split_reduction(program, target)
    check_step(program, "splitting reductions")
    program = online_softmax(program)
    check_step(program, "softmax in one pass")
    program = fold_into_attention(program, target)
    check_step(program, "folding into attention")
    return spread_memory(group_launches(program))


def start(
    program: LoopProgram, gm: fx.GraphModule | None, target: Target, options: Config | None
) -> Callable[[], GpuCode]:
    """Begins to build the kernels of a planned program. Returns a function that waits for them.
    ``gm``, what the program was lowered from, is needed for CUDA graphs only."""
    check_runnable(program, target)
    cache = None if options is None else open_cache(options)
    tuner = None if options is None else open_tuner(target.name, options)
    wanted = gm is not None and options is not None and options.cuda_graphs
    replay = replay_facts(gm, program) if gm is not None and wanted else None
    building = start_program(program, target, cache, tuner)
    return lambda: GpuCode(building.finish(), replay)


def replay_facts(gm: fx.GraphModule, program: LoopProgram) -> ReplayFacts:
    """What recording ``program`` as a CUDA graph must know, and whether it can be recorded."""
    written = {name for node in program.nodes for name in writes(node)}
    sizes, static, mutated = [], set(), set()
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for position, (node, argument) in enumerate(zip(placeholders, program.arguments, strict=True)):
        if isinstance(argument, Dim | ScalarArg):
            sizes.append(position)
            continue
        if node.meta.get("static"):
            static.add(position)
        if argument in written:
            mutated.add(position)
    return ReplayFacts(
        tuple(sizes),
        sizes_to_read(program, program.arguments),
        frozenset(static),
        frozenset(mutated),
        _refusal(program),
        tuple(len(n.args[0]) for n in program.nodes if prepares_draws(n)),
        next((b.device for b in program.buffers if b.device.type == "cuda"), None),
        gm.graph.output_node().meta.get("leased", frozenset()),
        tuple(p for p, node in enumerate(placeholders) if node.meta.get("kept")),
    )


def _waits(call: Extern) -> bool:
    """Whether ATen's kernel copies to the host or waits for the GPU."""
    if call.target == "aten.histc.default":  # which looks for a range where it is given none
        given = dict(zip(("input", "bins", "min", "max"), call.args)) | dict(call.kwargs)
        return bool(given.get("min", 0) == given.get("max", 0))
    return any(part in call.target for part in WAITS)


def _is_recorded(call: Extern) -> bool:
    """Whether a replay does what the call does: an author's op is taken to launch kernels alone,
    as torch's CUDA graphs take it, unless it is tagged to draw."""
    draws = torch.Tag.nondeterministic_seeded in torch_api.find_op(call.target).tags
    return prepares_draws(call) or not (draws or call.target.startswith("aten."))


def _refusal(program: LoopProgram) -> str:
    """Why ``program`` cannot be recorded as a CUDA graph; empty if it can."""
    for node in program.nodes:
        if isinstance(node, Extern) and node.effectful and not _is_recorded(node):
            return f"{node.target} has an effect that a replay would not repeat"
        if isinstance(node, Extern) and _waits(node):
            return f"{node.target} waits for the GPU, which a recording cannot"
    used = {name for node in program.nodes for name in reads(node)}
    for buffer in program.buffers:
        if buffer.device.type != "cpu" or buffer.kind == "constant":
            continue
        if buffer.shape or (buffer.kind == "input" and buffer.name in used):
            return f"{buffer.name} lives on the CPU"  # of one number a recording keeps the value
    return ""
