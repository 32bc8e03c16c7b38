"""Checks of indices that eager would refuse, and of numbers to fill with.

A check is a nest of its own over the index tensor, which is small beside what it indexes: a few
vector compares, and a bool in a buffer of kind "check". Where one is set, the call raises on a CPU
before anything uses the index; on a GPU the kernel ends in a device assertion, as eager's does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jitney.graph.effects import is_of_autograd
from jitney.loops import visit
from jitney.loops.index import Index, index
from jitney.loops.ir import Store
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import apply, as_expr, cast, const, index_expr
from jitney.loops.lowerings.strided import StridedTensor


def check_range(
    b: Builder,
    positions: StridedTensor,
    size: Index,
    wraps: bool,
    touched: Sequence[Index],
    ignored: int | None = None,
) -> None:
    """Emits the check that positions along a dimension of ``size`` are in range.

    ``wraps``: negative ones count from the end. ``touched``: the shape of what is read or written;
    where it is none, eager's kernels on a GPU check nothing. ``ignored``: a position that need not
    be. No check where autograd computes, whose forward has checked; none for constants that are
    in range, or what an earlier check has covered.
    """
    if is_of_autograd(b.node) or _is_constant_in_range(b, positions, size, wraps):
        return
    distinct = [index(1) if s == index(0) else n
                for n, s in zip(positions.shape, positions.strides, strict=True)]  # fmt: skip
    none_if_zero = () if b.target.kind == "cpu" else tuple(n for n in touched if n not in distinct)
    key = (positions.as_view(), size, wraps, ignored, none_if_zero)
    if _is_checked(b, key, positions.buffer):
        return
    axes, position = b.axes(distinct, "c")
    if any(n.is_const and n.const == 0 for n in (*(axis.extent for axis in axes), *none_if_zero)):
        return
    value = cast(positions.load(position), torch.int64)
    extent = index_expr(size)
    low = index_expr(index(0) - size) if wraps else const(0, torch.int64)
    outside = apply("or", apply("lt", value, low), apply("ge", value, extent))
    if ignored is not None:
        outside = apply("and", outside, apply("ne", value, const(ignored, torch.int64)))
    for n in none_if_zero:
        if not n.is_const:
            outside = apply("and", outside, apply("ne", index_expr(n), const(0, torch.int64)))
    name = b.checks[key] = b.check()
    if b.target.kind == "cuda":
        b.emit(axes, (Store(name, index(0), outside, mode="assert"),))
        return
    reduce, found = b.reduce(axes, "any", outside)
    b.emit((), (reduce, Store(name, index(0), found)))


def _is_checked(b: Builder, key: object, positions: str) -> bool:
    """Whether a check of the same stands, and nothing has written the positions since."""
    name = b.checks.get(key)
    for node in reversed(b.nodes):
        written = visit.writes(node)
        if name in written:
            return True
        if positions in written:
            return False
    return False


def _is_constant_in_range(b: Builder, positions: StridedTensor, size: Index, wraps: bool) -> bool:
    values = b.constants.get(positions.buffer)
    if values is None or not size.is_const or not values.numel():
        return False
    low = -size.const if wraps else 0
    return low <= int(values.min()) and int(values.max()) < size.const


def check_filler(b: Builder, value: StridedTensor, dtype: torch.dtype) -> None:
    """Emits the check that ``dtype`` holds the one element of ``value``, as a number that eager
    fills with has to be held: as finite as it is, and whole numbers in their range. On a CPU."""
    if b.target.kind != "cpu" or is_of_autograd(b.node) or torch.bool in (dtype, value.dtype):
        return
    limits, own = _limits(dtype), _limits(value.dtype)
    floats = value.dtype.is_floating_point  # among which are infinities and NaN
    if limits.min <= own.min and own.max <= limits.max and (dtype.is_floating_point or not floats):
        return
    wide = torch.float64 if floats else torch.int64
    number = cast(value.load(()), wide)
    least, most = (as_expr(end, wide) for end in (limits.min, limits.max))
    inside = apply("and", apply("ge", number, least), apply("le", number, most))
    outside = apply("not", inside)
    if dtype.is_floating_point and floats:
        for endless in ("isnan", "isinf"):
            outside = apply("and", outside, apply("not", apply(endless, number)))
    b.emit((), (Store(b.check(), index(0), outside),))


def _limits(dtype: torch.dtype) -> torch.finfo | torch.iinfo:
    return torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
