"""Assertions in the program become checks, as those of indices in `check_range`."""

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
    may turn."""
    if any(not size.is_const or size.const != 1 for size in x.shape):
        raise Refused("a condition of more than one element")
    failed = apply("eq", x.load((index(0),) * x.ndim), const(0, x.dtype))
    mode = "assert" if b.target.kind == "cuda" else "set"
    b.emit((), (Store(b.check(), index(0), failed, mode=mode),))


@lowers(aten._linalg_check_errors.default)
def linalg_check_errors(b: Builder, info: StridedTensor, name: str, *, is_matrix: bool) -> None:
    """A check that no matrix is one that LAPACK could not factor (singular, not positive
    definite). On a GPU eager waits for the values, and so does the library's call."""
    if b.target.kind == "cuda":
        raise Refused("eager waits for the values")
    axes, position = b.axes(info.shape, "c")
    if any(axis.extent.is_const and axis.extent.const == 0 for axis in axes):
        return
    reduce, found = b.reduce(axes, "any", apply("ne", info.load(position), const(0, info.dtype)))
    b.emit((), (reduce, Store(b.check(), index(0), found)))
