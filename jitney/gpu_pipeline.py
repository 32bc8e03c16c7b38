"""The part of the compile that is a GPU's own: a graph of ATen ops to Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitney.events import log
from jitney.kernels.triton.build_program import build_program
from jitney.kernels.triton.choose_templates import choose_templates
from jitney.kernels.triton.device import device_target
from jitney.kernels.triton.products_as_nests import products_as_nests
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.group_launches import group_launches
from jitney.loops.ir import Dim, Extern, LoopProgram, ScalarArg
from jitney.loops.lower_graph import lower_graph
from jitney.loops.plan_memory import plan_memory
from jitney.loops.recompute_small_rows import recompute_small_rows
from jitney.loops.simplify_nest import simplify_nests
from jitney.loops.split_reduction import split_reduction
from jitney.loops.visit import writes
from jitney.run.cuda_graphs import ReplayedProgram, ReplayFacts


def compile_for_gpu(
    gm: torch.fx.GraphModule, device: torch.device, options: Any = None
) -> Callable[..., tuple[Any, ...]]:
    """A graph of ATen ops on ``device`` to ``call(*placeholder values) -> tuple``."""
    target = device_target(device.index if device.index is not None else 0)
    with log.stage("lower"):
        program, constants = lower_graph(gm, target)
    with log.stage("fuse"):
        program = choose_templates(program, target)
        program = products_as_nests(fuse_nests(program, target))
        program = simplify_nests(fuse_nests(program, target))
        program = recompute_small_rows(program)
        program = split_reduction(program, target)
        program = group_launches(program)
    with log.stage("plan"):
        program = plan_memory(program)
    log.emit("program", program=program)
    with log.stage("build"):
        call = build_program(program, constants, target)
    if options is not None and options.cuda_graphs:
        return ReplayedProgram(call, replay_facts(gm, program))
    return call


def replay_facts(gm: torch.fx.GraphModule, program: LoopProgram) -> ReplayFacts:
    """What recording ``program`` must know, and whether it can be recorded at all."""
    written = {name for node in program.nodes for name in writes(node)}
    static, mutated, position = set(), set(), 0
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for position, (node, argument) in enumerate(zip(placeholders, program.arguments, strict=True)):
        if isinstance(argument, Dim | ScalarArg):
            continue
        if node.meta.get("static"):
            static.add(position)
        if argument in written:
            mutated.add(position)
    return ReplayFacts(frozenset(static), frozenset(mutated), _refusal(program))


def _refusal(program: LoopProgram) -> str:
    for node in program.nodes:
        if isinstance(node, Extern) and node.effectful:
            return f"{node.target} has an effect that a replay would not repeat"
    for buffer in program.buffers:
        if buffer.device.type == "cpu" and buffer.shape and buffer.kind != "constant":
            return f"{buffer.name} lives on the CPU"
    return ""
