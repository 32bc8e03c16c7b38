"""Traces a function to ATen, lowers it, and runs the program in the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from jitney.loops.interpret import interpret
from jitney.loops.ir import Extern, LoopProgram
from jitney.loops.lower_graph import lower_graph
from jitney.loops.target import Target
from jitney.loops.verify import verify

CPU = Target("cpu", "test")
GPU = Target("cuda", "test", multiprocessors=132, capability=(9, 0))


def trace(fn: Callable[..., Any], *args: Any, symbolic: bool = False) -> fx.GraphModule:
    """A functional ATen graph with fake tensors in ``meta["val"]``."""
    mode = "symbolic" if symbolic else "fake"
    functional = torch.func.functionalize(lambda *values: fn(*values))
    return make_fx(functional, tracing_mode=mode)(*args)


def lower(fn: Callable[..., Any], *args: Any) -> LoopProgram:
    """The program of a function."""
    return lower_graph(trace(fn, *args), CPU)[0]


def externs(program: LoopProgram) -> list[str]:
    """Targets of the calls that were not lowered."""
    return [node.target for node in program.nodes if isinstance(node, Extern)]


def check(
    fn: Callable[..., Any],
    *args: Any,
    allow_extern: bool = False,
    target: Target = CPU,
    **tolerance: Any,
) -> LoopProgram:
    """The lowered function equals eager: values, dtypes, shapes, strides and mutated inputs."""
    gm = trace(fn, *args)
    program, constants = lower_for(gm, target)
    program = on_cpu(program)
    verify(program)
    if not allow_extern:
        kept = externs(program)
        assert not kept, kept
    eager_args, our_args = _copies(args), _copies(args)
    expected = torch.utils._pytree.tree_leaves(fn(*eager_args))
    ours = interpret(program, constants, torch.utils._pytree.tree_leaves(our_args))
    assert len(ours) == len(expected)
    for mine, reference in zip([*ours, *our_args], [*expected, *eager_args], strict=True):
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(mine, reference, equal_nan=True, **tolerance)
            assert _strides(mine) == _strides(reference)
        else:
            assert mine == reference
    return program


def lower_for(gm: fx.GraphModule, target: Target) -> tuple[LoopProgram, dict[str, torch.Tensor]]:
    """`lower_graph`; for a GPU, the graph's tensors are said to live there."""
    if target.kind == "cpu":
        return lower_graph(gm, target)
    with FakeTensorMode():
        for node in gm.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map_only(torch.Tensor, _on_gpu, node.meta["val"])
    return lower_graph(gm, target)


def on_cpu(program: LoopProgram) -> LoopProgram:
    """The program for the interpreter: its buffers are said to live on the CPU."""
    cpu = torch.device("cpu")

    def moved(node: Any) -> Any:
        if not isinstance(node, Extern):
            return node
        return replace(node, args=tree_map_only(torch.device, lambda _: cpu, node.args))

    buffers = tuple(replace(b, device=cpu) for b in program.buffers)
    return replace(program, buffers=buffers, nodes=tuple(map(moved, program.nodes)))


def _on_gpu(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cuda:0")


def _copies(args: Any) -> list[Any]:
    return [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]


def _strides(tensor: torch.Tensor) -> list[int]:
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
