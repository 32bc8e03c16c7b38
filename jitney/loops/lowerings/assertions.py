"""Values that the program itself refuses are found, as `check_range` finds indices."""

from __future__ import annotations

import torch

from jitney.loops.index import index
from jitney.loops.ir import Store
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import apply, const
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten


@lowers(aten._assert_async.default, aten._assert_async.msg)
def assert_async(b: Builder, x: StridedTensor, message: str = "") -> None:
    """A check that the one element is not zero. On a CPU eager gets the last word, which rounding
    may turn: a call that could not be given up for it is left to the library."""
    if b.target.kind != "cuda" and not b.rerunnable:
        raise Refused("what the graph does besides cannot be done again")
    if any(not size.is_const or size.const != 1 for size in x.shape):
        raise Refused("a condition of more than one element")
    failed = apply("eq", x.load((index(0),) * x.ndim), const(0, x.dtype))
    mode = "assert" if b.target.kind == "cuda" else "set"
    b.emit((), (Store(b.check(), index(0), failed, mode=mode),))
