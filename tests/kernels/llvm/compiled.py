"""Compiles a function for the CPU without capture: trace, lower, fuse, plan, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from jitney.config import Config
from jitney.disk_cache import DiskCache
from jitney.kernels.llvm.build_program import load_program, make_native
from jitney.kernels.llvm.host import host_target
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.interpret import interpret
from jitney.loops.ir import Extern, LoopProgram
from jitney.loops.lower_graph import lower_graph
from jitney.loops.plan_memory import plan_memory
from jitney.loops.target import Target

HOST = host_target()


def avx2_target() -> Target:
    """The host restricted to AVX2."""
    return host_target("-avx512,-avx10")


def program_of(
    fn: Callable[..., Any], *args: Any, target: Target = HOST, fuse: bool = True
) -> tuple[LoopProgram, dict[str, torch.Tensor]]:
    """The planned program of a function of tensors."""
    gm = make_fx(torch.func.functionalize(fn), tracing_mode="fake")(*args)
    program, constants = lower_graph(gm, target)
    if fuse:
        program = fuse_nests(program, target)
    return plan_memory(program), constants


def build_program(
    program: LoopProgram,
    constants: Mapping[str, torch.Tensor],
    target: Target,
    options: Config | None = None,
    cache: DiskCache | None = None,
) -> Callable[..., Any]:
    """The program as native code of this process."""
    return load_program(make_native(program, target, options, cache), constants)


def compile_function(
    fn: Callable[..., Any], *args: Any, target: Target = HOST, fuse: bool = True
) -> Callable[..., Any]:
    """The function as native code, for arguments like these."""
    program, constants = program_of(fn, *args, target=target, fuse=fuse)
    return build_program(program, constants, target)


def check(
    fn: Callable[..., Any],
    *args: Any,
    target: Target = HOST,
    fuse: bool = True,
    lowered: bool = True,
    **tolerance: Any,
) -> None:
    """Native code equals eager, mutated inputs and special values included."""
    program, constants = program_of(fn, *args, target=target, fuse=fuse)
    if lowered:
        assert not [n.target for n in program.nodes if isinstance(n, Extern)]
    compiled = build_program(program, constants, target)
    eager_args, our_args = copies(args), copies(args)
    expected = torch.utils._pytree.tree_leaves(fn(*eager_args))
    ours = compiled(*our_args)
    assert len(ours) == len(expected)
    for mine, reference in zip([*ours, *our_args], [*expected, *eager_args], strict=True):
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(mine, reference, equal_nan=True, **tolerance)
        else:
            assert mine == reference


def copies(args: Any) -> list[Any]:
    """Arguments of their own, strides kept."""
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


__all__ = [
    "HOST",
    "avx2_target",
    "build_program",
    "check",
    "compile_function",
    "interpret",
    "program_of",
]
