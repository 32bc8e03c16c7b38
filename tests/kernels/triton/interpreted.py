"""A function through the GPU's passes and kernels, run in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitney import gpu_pipeline
from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.emit_node import emit_together
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops import interpret as reference
from jitney.loops import ir
from jitney.loops.plan_memory import plan_memory
from jitney.loops.target import Target
from jitney.loops.verify import verify
from tests.loops.lowered import lower_for, on_cpu, trace

H200 = Target("cuda", "NVIDIA H200", multiprocessors=132, capability=(9, 0))


def gpu_program(
    fn: Callable[..., Any], *args: Any, target: Target = H200, symbolic: bool = False
) -> tuple[ir.LoopProgram, dict[str, torch.Tensor]]:
    """The program of ``fn`` that kernels would be made of, its buffers said to be on the CPU."""
    program, constants = lower_for(trace(fn, *args, symbolic=symbolic), target)
    program = plan_memory(gpu_pipeline.transform(program, target))
    verify(program)
    return on_cpu(program), constants


def run_kernels(
    program: ir.LoopProgram,
    constants: dict[str, torch.Tensor],
    args: tuple[Any, ...],
    target: Target = H200,
    schedule: Callable[[ir.LoopNest, Target], Schedule] = schedule_nest,
) -> list[Any]:
    """Every nest as its kernel, every other node by the reference."""
    machine = reference._Machine(program, constants, args)
    sizes = {d.name: n for d, n in machine.dims.items()}
    for node in program.nodes:
        if isinstance(node, ir.LoopNest):
            sources = (emit_nest(node, schedule(node, target)),)
        elif isinstance(node, ir.Together):
            sources = emit_together(node, target, frozenset())
        else:
            machine.run(node)
            continue
        for source in sources:
            kernel = load_function(source.text(interpret=True))
            grid = tuple(size.evaluate(machine.dims) for size in source.grid)
            given = {**machine.scalars, **sizes, **machine.flat}
            kernel[grid](*[given[p.name] for p in source.parameters])
    return [machine.output(out) for out in program.outputs]
