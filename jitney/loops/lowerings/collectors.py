"""The memory into which a scatter combines values, wider than the result where that needs it."""

from __future__ import annotations

import math

import torch

from jitney.loops.ir import Const, Expr, Op
from jitney.loops.lowerings.atomics import ATOMICS
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import HALF, apply, cast, const, is_int, where
from jitney.loops.lowerings.strided import StridedTensor


def collector(b: Builder, x: StridedTensor, mode: str, exact: bool = False) -> StridedTensor:
    """Memory holding the values of ``x`` that stores of ``mode`` may combine in: the node's result
    where it can be (`collected`). ``exact``: not in 16-bit floats."""
    wide = _wide(x.dtype, mode, exact) if b.target.kind == "cuda" or exact else x.dtype
    if wide == x.dtype and (b.target.kind != "cuda" or mode == "add" or is_int(wide)):
        return b.own(x)
    out = b.allocate() if wide == x.dtype else b.allocate_as(x.shape, wide)
    return b.compute(out, lambda position: orderly(cast(x.load(position), wide), mode))


def crowds(b: Builder, x: StridedTensor, source: StridedTensor) -> bool:
    """Whether a CPU adds more numbers than ``x`` has places: eager adds those of 16 bits in
    float32. (Few into many, as experts' rows, stay in place: no pass over all of ``x``.)"""
    places, numbers = x.numel, source.numel
    if b.target.kind != "cpu" or x.dtype not in HALF:
        return False
    return places.is_const and numbers.is_const and 0 < places.const < numbers.const


def collected(b: Builder, work: StridedTensor) -> StridedTensor:
    """The node's result from what a `collector` holds."""
    return work if work.dtype == b.fake.dtype else b.copy(b.allocate(), work)


def _wide(dtype: torch.dtype, mode: str, exact: bool) -> torch.dtype:
    if dtype in HALF and (exact or dtype not in ATOMICS.get(mode, ())):
        return torch.float32
    narrow = is_int(dtype) and dtype.itemsize < torch.int32.itemsize
    return torch.int32 if narrow else dtype


def orderly(value: Expr, mode: str) -> Expr:
    """A float whose NaN, if it is one, an atomic maximum (or minimum) of its bits keeps."""
    if mode not in ("max", "min") or not value.dtype.is_floating_point:
        return value
    nan: Expr = const(math.nan, value.dtype)
    if mode == "min":
        whole = torch.int32 if value.dtype is torch.float32 else torch.int64
        nan = Op("bitcast", (Const(-1, whole),), value.dtype)
    return where(apply("isnan", value), nan, value)


def without_sign(value: Expr) -> Expr:
    """What `orderly` made of a NaN for a minimum, without its sign: a sort would put it first."""
    return where(apply("isnan", value), const(math.nan, value.dtype), value)
