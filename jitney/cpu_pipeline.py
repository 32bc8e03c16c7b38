"""What the compile of a graph does for a CPU only: fusion for vectors, then native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney.config import Config
from jitney.errors import Unsupported
from jitney.kernels.llvm.build_program import NativeProgram, load_program, make_native
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.hoist_checks import call_before_check, hoist_checks
from jitney.loops.ir import LoopProgram
from jitney.loops.simplify_nest import simplify_nests
from jitney.loops.split_long_products import split_long_products
from jitney.loops.target import Target
from jitney.loops.verify import check_step


@dataclass(frozen=True)
class CpuCode:
    """Machine code, as data."""

    native: NativeProgram

    def load(self, constants: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The callable of a program with these constants."""
        return load_program(self.native, constants)


def transform(program: LoopProgram, target: Target, _: Config | None = None) -> LoopProgram:
    """All passes between lowering and the memory plan. (The options: `gpu_pipeline` measures.)"""
    program = fuse_nests(program, target)
    check_step(program, "fusion")
    program = hoist_checks(simplify_nests(program))
    called = call_before_check(program)
    if called is not None:
        reason = f"a check of values comes behind a call of {called}, which eager would make again"
        raise Unsupported("late-check", reason)
    check_step(program, "simplifying nests")
    return split_long_products(program)


def start(
    program: LoopProgram, gm: fx.GraphModule | None, target: Target, options: Config | None
) -> Callable[[], CpuCode]:
    """Returns a function that makes native code of a planned program. (``gm``: `gpu_pipeline` uses
    it.)"""
    return lambda: CpuCode(make_native(program, target, options))
