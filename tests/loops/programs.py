"""Small torch programs and their loop programs, for tests of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from jitney.loops import ir
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.interpret import interpret
from jitney.loops.lower_graph import lower_graph
from jitney.loops.plan_memory import plan_memory
from jitney.loops.simplify_nest import simplify_nests
from jitney.loops.target import Target
from jitney.loops.verify import verify

TARGET = Target("cpu", "test", cores=2)
Function = Callable[..., Any]
#: Kept whole, as `jitney.graph` keeps them.
_WHOLE = (
    "native_layer_norm",
    "_softmax",
    "addmm",
    "gelu",
    "silu",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "native_layer_norm_backward",
    "_softmax_backward_data",
    "gelu_backward",
)


def lowered(
    fn: Function, args: Sequence[torch.Tensor]
) -> tuple[ir.LoopProgram, dict[str, torch.Tensor]]:
    """The unfused program of ``fn`` on fake copies of ``args``, verified."""
    table = core_aten_decompositions()
    kept = {op: f for op, f in table.items() if op._schema.name.split("::")[-1] not in _WHOLE}
    graph = make_fx(fn, tracing_mode="fake", decomposition_table=kept)(*args)
    graph.graph.eliminate_dead_code()
    program, constants = lower_graph(graph, TARGET)
    verify(program)
    return program, constants


def optimised(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program after every pass, verified after each."""
    for name, step in (("fusion", _fused), ("simplify", simplify_nests), ("memory", plan_memory)):
        program = step(program)
        verify(program, name)
    return program


def _fused(program: ir.LoopProgram) -> ir.LoopProgram:
    return fuse_nests(program, TARGET)


def same_after_passes(fn: Function, args: Sequence[torch.Tensor]) -> ir.LoopProgram:
    """Asserts that passes change no value (roundings of sums aside); returns the fused program."""
    program, constants = lowered(fn, args)
    fused = optimised(program)
    plain_args, fused_args = ([a.clone() for a in args] for _ in range(2))
    plain = interpret(program, constants, plain_args)
    after = interpret(fused, constants, fused_args)
    for want, got in zip([*plain, *plain_args], [*after, *fused_args], strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5, equal_nan=True)
    return fused


def kernels(program: ir.LoopProgram) -> list[str]:
    """The class name of every node, in order."""
    return [type(node).__name__ for node in program.nodes]
