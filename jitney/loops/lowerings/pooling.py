"""Windows over an image, their means, and the gradients of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Expr, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    all_in_range,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    div,
    index_expr,
    mul,
    sub,
)
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Lowering, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Sizes = Sequence[int]


@dataclass(frozen=True)
class Window:
    """Windows over the last ``len(kernel)`` dimensions: size, step, padding and dilation."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def axes(self) -> tuple[Axis, ...]:
        """One axis for every kernel dimension longer than one."""
        return tuple(Axis(f"r{d}", index(k)) for d, k in enumerate(self.kernel) if k > 1)

    def source(self, position: Position) -> Position:
        """Where in the input the windows' axes lie, for a position in the output."""
        steps = [index(Axis(f"r{d}", index(k)) if k > 1 else 0) for d, k in enumerate(self.kernel)]
        return self.tap(position, steps)

    def tap(self, position: Position, steps: Sequence[Index]) -> Position:
        """Where in the input one element of the window lies, for a position in the output."""
        n = len(self.kernel)
        at = list(position[:-n])
        for d, out in enumerate(position[-n:]):
            at.append(out * self.stride[d] - self.padding[d] + steps[d] * self.dilation[d])
        return tuple(at)


def window_of(kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, rank: int) -> Window:
    """A window over ``rank`` dimensions; one value serves all, no stride is the kernel's size."""

    def spread(values: Sizes) -> tuple[int, ...]:
        if any(not isinstance(v, int) for v in values):
            raise Refused("a window of symbolic size")
        return tuple(values) * (rank if len(values) == 1 else 1)

    return Window(spread(kernel), spread(stride or kernel), spread(padding), spread(dilation))


# ---------------------------------------------------------------- mean


def _clipped(at: Index, size: Index) -> Expr:
    """A place held inside ``0 … size``, as a number."""
    value = index_expr(at)
    value = apply("max", value, const(0, torch.int64))
    return apply("min", value, as_expr(size, torch.int64))


def _divisor(
    window: Window, position: Position, x: StridedTensor, include_pad: bool, fixed: int | None
) -> Expr:
    """How many elements a window's mean is over, as an i64 number."""
    if fixed is not None:
        return const(fixed, torch.int64)
    rank = len(window.kernel)
    total: Expr = const(1, torch.int64)
    for d in range(rank):
        start = position[d - rank] * window.stride[d] - window.padding[d]
        size = x.shape[d - rank]
        end = start + window.kernel[d]
        if include_pad:
            length = sub(_clipped_end(end, size + window.padding[d]), index_expr(start))
        else:
            length = sub(_clipped(end, size), _clipped(start, size))
        total = mul(total, length)
    return total


def _clipped_end(at: Index, limit: Index) -> Expr:
    gap = (at - limit).bounds()[1]
    if gap is not None and gap <= 0:
        return index_expr(at)
    return apply("min", index_expr(at), as_expr(limit, torch.int64))


def _average_pool(rank: int) -> Lowering:
    def lowering(
        b: Builder,
        x: StridedTensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> StridedTensor:
        out = b.allocate()
        if not x.dtype.is_floating_point:
            raise Refused("a mean of integers")
        window = window_of(kernel, stride, padding, (1,), rank)
        axes, position = b.axes(out.shape, strides=out.strides)
        source = window.source(position)
        mask = all_in_range(source[-rank:], x.shape[-rank:])
        value = cast(x.load(source, mask), compute_dtype(x.dtype))
        divisor = _divisor(window, position, x, count_include_pad, divisor_override)
        if not window.axes():
            b.emit(axes, (store(out, position, div(value, cast(divisor, value.dtype))),))
            return out
        sums, total = b.reduce(window.axes(), "sum", value)
        b.emit(axes, (sums, store(out, position, div(total, cast(divisor, value.dtype)))))
        return out

    return lowering


lowers(aten.avg_pool1d.default)(_average_pool(1))
lowers(aten.avg_pool2d.default)(_average_pool(2))
lowers(aten.avg_pool3d.default)(_average_pool(3))


def _average_pool_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder,
        grad: StridedTensor,
        x: StridedTensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> StridedTensor:
        """Each gradient spread over its window; planes are independent."""
        out = b.fill(b.allocate(), 0)
        window = window_of(kernel, stride, padding, (1,), rank)
        axes, position = b.axes(grad.shape)
        acc = compute_dtype(grad.dtype)
        divisor = _divisor(window, position, x, count_include_pad, divisor_override)
        value = div(cast(grad.load(position), acc), cast(divisor, acc))
        source = window.source(position)
        mask = all_in_range(source[-rank:], x.shape[-rank:])
        stored = Store(out.buffer, out.at(source), cast(value, out.dtype), mask, "add")
        b.emit_in_order(axes, position[-rank:], (stored,), window.axes())
        return out

    return lowering


lowers(aten.avg_pool2d_backward.default)(_average_pool_backward(2))
lowers(aten.avg_pool3d_backward.default)(_average_pool_backward(3))
