"""Pooling to a given size: windows that may be of unequal length and overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney.loops.index import Axis, Index, floor_div, index
from jitney.loops.ir import Expr, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    all_of,
    apply,
    cast,
    compute_dtype,
    const,
    div,
    index_expr,
    lowest,
    mul,
)
from jitney.loops.lowerings.max_pool import add_at_maxima, place_of_maximum
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Lowering, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Sizes = Sequence[int]


@dataclass(frozen=True)
class Windows:
    """Window ``i`` of each of the last dimensions runs from ``i * n // m`` to
    ``ceil((i + 1) * n / m)``; ``axes`` are as long as the longest.

    ``source``: where in the input the axes lie. ``mask``: whether there is such an element.
    ``count``: how many elements a window has. ``starts``: where it begins.
    """

    axes: tuple[Axis, ...]
    source: Position
    mask: Expr | None
    count: Expr
    starts: tuple[Index, ...]


def _windows(sizes: Sequence[tuple[Index, Index]], position: Position) -> Windows:
    """The windows of a result at ``position``; ``sizes`` (input, result) of the last dimensions."""
    rank = len(sizes)
    if any(not n.is_const or not n.const for pair in sizes for n in pair):
        raise Refused("an adaptive window of unknown or no size")
    source, starts = list(position[:-rank]), []
    axes: list[Axis] = []
    masks: list[Expr | None] = []
    count: Expr = const(1, torch.int64)
    for d, (have, want) in enumerate((n.const, m.const) for n, m in sizes):
        at = position[d - rank]
        start = floor_div(at * have, index(want))
        end = floor_div((at + 1) * have + (want - 1), index(want))
        longest = longest_window(have, want)
        axis = Axis(f"r{d}", index(longest))
        step = index(axis) if longest > 1 else index(0)
        if longest > 1:
            axes.append(axis)
        even = have % want == 0
        masks.append(None if even else apply("lt", index_expr(start + step), index_expr(end)))
        count = mul(count, const(longest, torch.int64) if even else index_expr(end - start))
        source.append(start + step)
        starts.append(start)
    return Windows(tuple(axes), tuple(source), all_of(*masks), count, tuple(starts))


def longest_window(have: int, want: int) -> int:
    """The most elements that one of ``want`` windows has: one may begin at any rest of a division
    by ``want``, once what divides both is taken out."""
    common = math.gcd(have, want)
    return (have // common + want // common - 2) // (want // common) + 1


def _average(rank: int) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, size: Sizes) -> StridedTensor:
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        w = _windows(list(zip(x.shape[-rank:], out.shape[-rank:], strict=True)), position)
        value = cast(x.load(w.source, w.mask), compute_dtype(x.dtype))
        if not w.axes:
            b.emit(axes, (store(out, position, value),))
            return out
        sums, total = b.reduce(w.axes, "sum", value)
        b.emit(axes, (sums, store(out, position, div(total, cast(w.count, value.dtype)))))
        return out

    return lowering


def _average_backward(rank: int) -> Lowering:
    def lowering(b: Builder, grad: StridedTensor, x: StridedTensor) -> StridedTensor:
        """Each input gathers from the one window it lies in, or from those that overlap there."""
        sizes = list(zip(x.shape[-rank:], grad.shape[-rank:], strict=True))
        if not all(n.is_const and m.is_const and m.const for n, m in sizes):
            raise Refused("an adaptive window of unknown or no size")
        if any(n.const % m.const for n, m in sizes):
            return _spread(b, grad, sizes)
        steps = [n.const // m.const for n, m in sizes]
        acc = compute_dtype(grad.dtype)
        area = 1
        for step in steps:
            area *= step

        def value_at(position: Position) -> Expr:
            inner = zip(position[-rank:], steps, strict=True)
            at = [floor_div(p, index(step)) for p, step in inner]
            value = cast(grad.load((*position[:-rank], *at)), acc)
            return div(value, const(area, acc))

        return b.compute(b.allocate(), value_at)

    return lowering


def _spread(b: Builder, grad: StridedTensor, sizes: Sequence[tuple[Index, Index]]) -> StridedTensor:
    """Each gradient added all over its window; planes are independent."""
    if grad.dtype not in (torch.float32, torch.float64):
        raise Refused("overlapping windows of 16-bit floats")
    out = b.fill(b.allocate(), 0)
    axes, position = b.axes(grad.shape)
    w = _windows(sizes, position)
    value = div(grad.load(position), cast(w.count, grad.dtype))
    stored = Store(out.buffer, out.at(w.source), value, w.mask, "add")
    b.emit_in_order(axes, position[-len(sizes) :], (stored,), w.axes)
    return out


def _maximum(rank: int) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, size: Sizes) -> tuple[StridedTensor, StridedTensor]:
        """Results: the maxima, and where in its plane each was found (counted row-major)."""
        out, places = (b.allocate(fake) for fake in b.fake)
        axes, position = b.axes(out.shape, strides=out.strides)
        w = _windows(list(zip(x.shape[-rank:], out.shape[-rank:], strict=True)), position)
        element = cast(x.load(w.source, w.mask, lowest(x.dtype)), compute_dtype(x.dtype))
        best, top = b.reduce(w.axes, "max", element)
        found, at = place_of_maximum(b, w.axes, element)
        place = _place(w, at, x.shape[-rank:])
        b.emit(axes, (best, *found, store(out, position, top), store(places, position, place)))
        return out, places

    return lowering


def _place(w: Windows, at: Expr, plane: Sequence[Index]) -> Expr:
    """The place in the plane of the ``at``-th element over the windows' axes."""
    lengths = {axis.name: axis.extent.const for axis in w.axes}
    place: Expr = const(0, torch.int64)
    below = 1
    for length in lengths.values():
        below *= length
    for d, start in enumerate(w.starts):
        length = lengths.get(f"r{d}", 1)
        below //= length
        step: Expr = const(0, torch.int64)
        if length > 1:
            step = apply("floordiv", at, const(below, torch.int64))
            step = apply("remainder", step, const(length, torch.int64))
        here = add(index_expr(start), step)
        place = add(mul(place, const(plane[d].const, torch.int64)), here)
    return place


lowers(aten._adaptive_avg_pool2d.default)(_average(2))
lowers(aten._adaptive_avg_pool3d.default)(_average(3))
lowers(aten._adaptive_avg_pool2d_backward.default)(_average_backward(2))
lowers(aten._adaptive_avg_pool3d_backward.default)(_average_backward(3))
lowers(aten.adaptive_max_pool2d.default)(_maximum(2))
lowers(aten.adaptive_max_pool3d.default)(_maximum(3))


def _maximum_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder, grad: StridedTensor, x: StridedTensor, places: StridedTensor
    ) -> StridedTensor:
        return add_at_maxima(b, grad, places, rank)

    return lowering


lowers(aten.adaptive_max_pool2d_backward.default)(_maximum_backward(2))
lowers(aten.adaptive_max_pool3d_backward.default)(_maximum_backward(3))
