"""Max pooling, the place of each maximum, and the gradient.

Small windows are written out where places are wanted (on a GPU always: neighbouring programs share
what they read through the cache). Where that is cheap, each element of the image gathers its
gradient, without atomics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from jitney.loops.index import Axis, Index, floor_div, index
from jitney.loops.ir import Expr, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    all_in_range,
    all_of,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    in_range,
    index_expr,
    lowest,
    mul,
    where,
)
from jitney.loops.lowerings.pooling import Sizes, Window, window_of
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Lowering, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.points import place_among

aten = torch.ops.aten
#: Elements of a window, or windows over an element, up to which they are written out.
UNROLLED = 16


def _max_pool(rank: int) -> Lowering:
    def lowering(
        b: Builder,
        x: StridedTensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[StridedTensor, StridedTensor]:
        """Results: the maxima, and where in its plane each was found (counted row-major)."""
        out, indices = (b.allocate(fake) for fake in b.fake)
        window = window_of(kernel, stride, padding, dilation, rank)
        axes, position = b.axes(out.shape, strides=out.strides)
        wanted = b.target.kind == "cuda" or b.used(1)
        if wanted and math.prod(window.kernel) <= UNROLLED:
            b.emit(axes, _tap_by_tap(b, x, window, position, out, indices))
            return out, indices
        source = window.source(position)
        value = x.load(source, all_in_range(source[-rank:], x.shape[-rank:]), lowest(x.dtype))
        element = cast(value, compute_dtype(x.dtype))
        best, top = b.reduce(window.axes(), "max", element)
        body: list[Stmt] = [best, store(out, position, top)]
        if b.used(1):
            found, at = place_of_maximum(b, window.axes(), element)
            place = _plane_index(window, position, at, x)
            if any(window.padding):  # which is no less than the least value
                least = apply("eq", top, const(lowest(x.dtype), top.dtype))
                place = where(least, _first_place(window, position, x), place)
            body += [*found, store(indices, position, place)]
        b.emit(axes, body)
        return out, indices

    return lowering


lowers(aten.max_pool2d_with_indices.default)(_max_pool(2))
lowers(aten.max_pool3d_with_indices.default)(_max_pool(3))


def place_of_maximum(
    b: Builder, axes: Sequence[Axis], element: Expr
) -> tuple[tuple[Stmt, ...], Expr]:
    """Statements for the place of the first maximum, of the last NaN if there is one (eager's
    rule), counted row-major over ``axes``; and the place."""
    if not element.dtype.is_floating_point:
        found, (at,) = b.reduce_all(axes, (("argmax", element),))
        return found, at
    nowhere = const(-1, torch.int64)
    unordered = where(apply("isnan", element), index_expr(place_among(axes)), nowhere)
    found, (at, last) = b.reduce_all(axes, (("argmax", element), ("max", unordered)))
    return found, where(apply("lt", last, const(0, torch.int64)), at, last)


def _plane_index(window: Window, position: Position, at: Expr, x: StridedTensor) -> Expr:
    """The place in the plane of the ``at``-th element of a window."""
    rank = len(window.kernel)
    place: Expr = const(0, torch.int64)
    for d in range(rank):
        below = const(math.prod(window.kernel[d + 1 :]), torch.int64)
        step = apply("floordiv", at, below)
        if d:
            step = apply("remainder", step, const(window.kernel[d], torch.int64))
        start = index_expr(position[d - rank] * window.stride[d] - window.padding[d])
        here = add(start, mul(step, const(window.dilation[d], torch.int64)))
        place = add(mul(place, as_expr(x.shape[d - rank], torch.int64)), here)
    return place


def add_at_maxima(
    b: Builder, grad: StridedTensor, places: StridedTensor, rank: int
) -> StridedTensor:
    """Each gradient added at its place in its plane; planes are independent."""
    out = b.fill(b.allocate(), 0)
    plane = index(1)
    for size in out.shape[-rank:]:
        plane = plane * size
    axes, position = b.axes(grad.shape)
    lets, at = b.let_index(places.load(position), plane, f"{b.node.name}_at")
    place: list[Index] = []
    for size in reversed(out.shape[-rank + 1 :]):
        place.insert(0, at % size)
        at = floor_div(at, size)
    target = out.at((*position[:-rank], at, *place))
    value = cast(grad.load(position), out.dtype)
    stored = Store(out.buffer, target, value, mode="add")
    b.emit_in_order(axes, position[-rank:], (*lets, stored))
    return out


def _max_pool_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder,
        grad: StridedTensor,
        x: StridedTensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: StridedTensor,
    ) -> StridedTensor:
        """Each gradient added where its maximum was found; planes are independent."""
        window = window_of(kernel, stride, padding, dilation, rank)
        if math.prod(_reach(window)) <= _most_gathered(b, grad):
            return _gathered(b, grad, window, indices)
        return add_at_maxima(b, grad, indices, rank)

    return lowering


def _most_gathered(b: Builder, grad: StridedTensor) -> int:
    """Windows over an element up to which its gradient is gathered: a CPU's vectors along a row
    would meet windows at uneven places where those overlap; along channels they do not."""
    along_channels = grad.strides[1] == index(1)
    return UNROLLED if b.target.kind == "cuda" or along_channels else 1


lowers(aten.max_pool2d_with_indices_backward.default)(_max_pool_backward(2))
lowers(aten.max_pool3d_with_indices_backward.default)(_max_pool_backward(3))


# ---------------------------------------------------------------- written out


def _plane(place: Sequence[Index], shape: Sequence[Index]) -> Index:
    """A place in the last ``len(place)`` dimensions, counted row-major."""
    at = index(0)
    for step, size in zip(place, shape[-len(place) :], strict=True):
        at = at * size + step
    return at


def _tap_by_tap(
    b: Builder,
    x: StridedTensor,
    window: Window,
    position: Position,
    out: StridedTensor,
    indices: StridedTensor,
) -> list[Stmt]:
    """Eager's loop over the window: a greater value or a NaN takes over, with its place."""
    rank, acc = len(window.kernel), compute_dtype(x.dtype)
    body: list[Stmt] = []

    def named(hint: str, value: Expr) -> Expr:
        statement, reference = b.let(hint, value)
        body.append(statement)
        return reference

    best: Expr = const(lowest(x.dtype), acc)
    at = _first_place(window, position, x)
    for taps in itertools.product(*(range(k) for k in window.kernel)):
        source = window.tap(position, [index(t) for t in taps])
        loaded = x.load(source, all_in_range(source[-rank:], x.shape[-rank:]), lowest(x.dtype))
        value = named("value", cast(loaded, acc))
        better = apply("gt", value, best)
        if acc.is_floating_point:
            better = apply("or", better, apply("isnan", value))
        better = named("better", better)
        at = named("at", where(better, index_expr(_plane(source[-rank:], x.shape)), at))
        best = named("best", where(better, value, best))
    body.append(store(out, position, best))
    if b.used(1):
        body.append(store(indices, position, at))
    return body


def _first_place(window: Window, position: Position, x: StridedTensor) -> Expr:
    """The place in the plane of a window's first element that is not padding: eager's answer where
    nothing is above the least value."""
    rank = len(window.kernel)
    place: Expr = const(0, torch.int64)
    for d, (at, size) in enumerate(zip(position[-rank:], x.shape[-rank:], strict=True)):
        place = add(mul(place, as_expr(size, torch.int64)), _first_inside(at, window, d))
    return place


def _first_inside(at: Index, window: Window, d: int) -> Expr:
    """The first coordinate of a window along dimension ``d`` that is not padding."""
    start = at * window.stride[d] - window.padding[d]
    first = index_expr(start)
    if not window.padding[d]:
        return first
    # Of start + k * dilation the least that is not negative is its remainder.
    inside_at = apply("remainder", first, const(window.dilation[d], torch.int64))
    return where(apply("lt", first, const(0, torch.int64)), inside_at, first)


def _reach(window: Window) -> list[int]:
    """By dimension: how many windows at most an element of the image lies between."""
    every = zip(window.kernel, window.stride, window.dilation, strict=True)
    return [(k - 1) * d // s + 1 for k, s, d in every]


def _gathered(
    b: Builder, grad: StridedTensor, window: Window, indices: StridedTensor
) -> StridedTensor:
    """For each element of the image, the gradients of the windows whose maximum it is."""
    out, rank = b.allocate(), len(window.kernel)
    acc = compute_dtype(grad.dtype)

    def value_at(position: Position) -> Expr:
        here = index_expr(_plane(position[-rank:], out.shape))
        total: Expr = const(0, acc)
        for back in itertools.product(*(range(n) for n in _reach(window))):
            at: list[Index] = []
            masks: list[Expr | None] = []
            for d in range(rank):
                last = floor_div(position[d - rank] + window.padding[d], index(window.stride[d]))
                at.append(last - back[d])
                masks.append(in_range(at[d], 0, grad.shape[d - rank]))
            there, mask = (*position[:-rank], *at), all_of(*masks)
            found = apply("eq", indices.load(there, mask, -1), here)
            value = cast(grad.load(there, mask), acc)
            total = add(total, where(found, value, const(0, acc)))
        return total

    return b.compute(out, value_at)
