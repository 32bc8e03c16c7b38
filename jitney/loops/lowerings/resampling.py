"""Upsampling by nearest neighbour and by (bi-, tri-) linear interpolation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from jitney.loops.index import Index, Value, floor_div, index
from jitney.loops.ir import Expr, Let, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    mul,
    sub,
)
from jitney.loops.lowerings.linear_rows import by_rows, lies_in_rows
from jitney.loops.lowerings.registry import Lowering, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Scales = Sequence[float | None]


def _sizes(b: Builder, x: StridedTensor, rank: int) -> list[tuple[int, int]]:
    """(input, output) sizes by spatial dimension, which must be known."""
    sizes = []
    for have, want in zip(x.shape[-rank:], b.fake.shape[-rank:], strict=True):
        if not have.is_const or not isinstance(want, int) or not have.const or not want:
            raise Refused("an image of unknown or no size")
        sizes.append((have.const, want))
    return sizes


def _scales_of(arguments: Sequence[object], rank: int) -> Scales:
    """Scale factors from ``(…, scales_h, scales_w)`` or from one list."""
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple | None):
        given: Sequence[object] = arguments[0] or ()
    else:
        given = arguments
    scales = [s if isinstance(s, float) else None for s in given]
    return scales if len(scales) == rank else [None] * rank


def _step(
    have: int, want: int, scale: float | None, acc: torch.dtype = torch.float32
) -> torch.Tensor:
    """Input elements by output element, in the precision ``acc`` that eager computes it in."""
    if scale is not None and scale > 0:
        return torch.tensor(1.0 / scale, dtype=acc)
    return torch.tensor(have, dtype=acc) / want


def _is_ratio(have: int, want: int, step: torch.Tensor, offset: float) -> bool:
    """Whether eager's ``floor((i + offset) * step)`` is ``i * have // want`` for every i."""
    at = (torch.arange(want, dtype=torch.float32) + offset) * step
    return torch.equal(at.floor().long().clamp(max=have - 1), torch.arange(want) * have // want)


def _nearest_source(
    b: Builder,
    place: Position,
    sizes: Sequence[tuple[int, int]],
    scales: Scales,
    offset: float,
    dtype: torch.dtype,
) -> tuple[list[Let], list[Index]]:
    """Statements, then where in the input a place of the result is taken from."""
    lets: list[Let] = []
    source = []
    for at, (have, want), scale in zip(place, sizes, scales, strict=True):
        step = _step(have, want, scale)
        if _is_ratio(have, want, step, offset):
            source.append(floor_div(at * have, index(want)))
            continue
        if want in (have, have * 2):
            raise Refused("a scale that some of eager's kernels take and some replace by 1 or 2")
        if dtype is torch.float64:
            raise Refused("a scale that is not the ratio of the sizes, in double precision")
        where = add(as_expr(at, torch.float32), const(offset, torch.float32))
        where = apply("floor", mul(where, const(float(step), torch.float32)))
        last = const(have - 1, torch.int64)
        named, taken = b.let_place("at", apply("min", cast(where, torch.int64), last))
        lets.append(named)
        source.append(taken)
    return lets, source


def _nearest(rank: int, offset: float) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, size: object, *scales: object) -> StridedTensor:
        """The element at ``floor((i + offset) * step)``."""
        sizes, given = _sizes(b, x, rank), _scales_of(scales, rank)
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        lets, at = _nearest_source(b, position[-rank:], sizes, given, offset, x.dtype)
        value = x.load((*position[:-rank], *at))
        b.emit(axes, (*lets, Store(out.buffer, out.at(position), value)))
        return out

    return lowering


def _nearest_backward(rank: int, offset: float) -> Lowering:
    def lowering(
        b: Builder, grad: StridedTensor, _out: object, _in: object, *scales: object
    ) -> StridedTensor:
        """Each input sums the gradients of the elements that were taken from it."""
        sizes = [(have, want) for want, have in _sizes(b, grad, rank)]
        given = _scales_of(scales, rank)
        steps = [(*n, _step(*n, scale), offset) for n, scale in zip(sizes, given, strict=True)]
        if any(want % have for have, want in sizes) or not all(_is_ratio(*s) for s in steps):
            return _add_to_source(b, grad, sizes, given, offset)
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        factors = [want // have for have, want in sizes]
        reduced, inner = b.axes([index(f) for f in factors], "r")
        at = [p * f + s for p, f, s in zip(position[-rank:], factors, inner, strict=True)]
        value = cast(grad.load((*position[:-rank], *at)), compute_dtype(grad.dtype))
        reduce, total = b.reduce(reduced, "sum", value)
        b.emit(axes, (reduce, Store(out.buffer, out.at(position), cast(total, out.dtype))))
        return out

    return lowering


def _add_to_source(
    b: Builder,
    grad: StridedTensor,
    sizes: Sequence[tuple[int, int]],
    scales: Scales,
    offset: float,
) -> StridedTensor:
    """Blocks of unequal size: element by element; planes are independent."""
    if grad.dtype not in (torch.float32, torch.float64):
        raise Refused("gradients added up in 16-bit floats")
    rank = len(sizes)
    out = b.fill(b.allocate(), 0)
    axes, position = b.axes(grad.shape)
    lets, at = _nearest_source(b, position[-rank:], sizes, scales, offset, grad.dtype)
    target = out.at((*position[:-rank], *at))
    stored = Store(out.buffer, target, grad.load(position), mode="add")
    b.emit_in_order(axes, position[-rank:], (*lets, stored))
    return out


for _rank, _op, _backward in (
    (1, aten.upsample_nearest1d, aten.upsample_nearest1d_backward),
    (2, aten.upsample_nearest2d, aten.upsample_nearest2d_backward),
    (3, aten.upsample_nearest3d, aten.upsample_nearest3d_backward),
):
    lowers(_op.default, _op.vec)(_nearest(_rank, 0))
    lowers(_backward.default)(_nearest_backward(_rank, 0))
for _rank, _op, _backward in (
    (1, aten._upsample_nearest_exact1d, aten._upsample_nearest_exact1d_backward),
    (2, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact2d_backward),
    (3, aten._upsample_nearest_exact3d, aten._upsample_nearest_exact3d_backward),
):
    lowers(_op.default, _op.vec)(_nearest(_rank, 0.5))
    lowers(_backward.default)(_nearest_backward(_rank, 0.5))


# ---------------------------------------------------------------- linear


def _linear(rank: int) -> Lowering:
    def lowering(
        b: Builder, x: StridedTensor, size: object, align_corners: bool, *scales: object
    ) -> StridedTensor:
        """The mean of the two neighbours along each dimension, weighted by nearness."""
        if not x.dtype.is_floating_point:
            raise Refused("an interpolation of integers")
        sizes, given = _sizes(b, x, rank), _scales_of(scales, rank)
        out = b.allocate()
        acc = compute_dtype(x.dtype)
        steps = [_linear_step(*n, s, align_corners, acc) for n, s in zip(sizes, given, strict=True)]

        def between(position: Position, *place: Index) -> tuple[list[Stmt], Expr]:
            """Statements and the mean over all dimensions but those that ``place`` gives."""
            body: list[Stmt] = []
            sides = []
            for d in range(rank - len(place)):
                at = position[d - rank]
                lets, near = _neighbours(b, at, sizes[d], steps[d], align_corners, acc)
                body.extend(lets)
                sides.append(near)
            total: Expr | None = None
            for corner in itertools.product(*sides):
                where = (*position[:-rank], *(at for at, _ in corner), *place)
                value = cast(x.load(where), acc)
                for _, weight in corner:
                    value = mul(value, weight)
                total = value if total is None else add(total, value)
            assert total is not None
            return body, total

        if sizes[-1][0] < sizes[-1][1] and lies_in_rows(b, x, out):
            source = _places(sizes[-1][1], steps[-1], align_corners, acc)
            return by_rows(b, x, out, between, source)
        axes, position = b.axes(out.shape, strides=out.strides)
        body, total = between(position)
        b.emit(axes, (*body, Store(out.buffer, out.at(position), cast(total, out.dtype))))
        return out

    return lowering


def _places(want: int, step: float, align_corners: bool, acc: torch.dtype) -> torch.Tensor:
    """Where in the input each element of a dimension lies, rounded as `_neighbours` does."""
    place = torch.arange(want, dtype=acc)
    if align_corners:
        return place * step
    return ((place + 0.5) * step - 0.5).clamp(min=0)


def _linear_step(
    have: int, want: int, scale: float | None, align_corners: bool, acc: torch.dtype
) -> float:
    if align_corners:
        return (have - 1) / (want - 1) if want > 1 else 0.0
    return float(_step(have, want, scale, acc))


def _neighbours(
    b: Builder,
    at: Index,
    sizes: tuple[int, int],
    step: float,
    align_corners: bool,
    acc: torch.dtype,
) -> tuple[list[Let], list[tuple[Index, Expr]]]:
    """Statements, then (position, weight) of the neighbour below and of the one above; in a
    dimension that keeps its size both are the element itself, as eager has them on a CPU."""
    have, want = sizes
    if have == want and b.target.kind == "cpu":
        return [], [(at, const(1, acc)), (at, const(0, acc))]
    place = as_expr(at, acc)
    if align_corners:
        source = mul(place, const(step, acc))
    else:
        half = const(0.5, acc)
        source = sub(mul(add(place, half), const(step, acc)), half)
        source = apply("max", source, const(0, acc))
    names = [b.fresh(f"{b.node.name}_{part}") for part in ("source", "below", "above", "far")]
    exact, below = Ref(names[0], acc), Ref(names[1], torch.int64)
    last = const(have - 1, torch.int64)
    floor = apply("min", cast(apply("floor", exact), torch.int64), last)
    lets = [
        Let(names[0], source),
        Let(names[1], floor),
        Let(names[2], apply("min", add(below, const(1, torch.int64)), last)),
        Let(names[3], apply("min", sub(exact, cast(below, acc)), const(1, acc))),
    ]
    far = Ref(names[3], acc)
    sides = [
        (index(Value(names[1])), sub(const(1, acc), far)),
        (index(Value(names[2])), far),
    ]
    return lets, sides


def _linear_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder,
        grad: StridedTensor,
        _out: object,
        _in: object,
        align_corners: bool,
        *scales: object,
    ) -> StridedTensor:
        """Each gradient added to the neighbours it came from, by their weights."""
        if grad.dtype not in (torch.float32, torch.float64):
            raise Refused("gradients added up in 16-bit floats")
        sizes = [(have, want) for want, have in _sizes(b, grad, rank)]
        out = b.fill(b.allocate(), 0)
        axes, position = b.axes(grad.shape)
        body: list[Stmt] = []
        sides = []
        for d, scale in enumerate(_scales_of(scales, rank)):
            step = _linear_step(*sizes[d], scale, align_corners, grad.dtype)
            place = position[d - rank]
            lets, near = _neighbours(b, place, sizes[d], step, align_corners, grad.dtype)
            body.extend(lets)
            sides.append(near)
        for corner in itertools.product(*sides):
            value: Expr = grad.load(position)
            for _, weight in corner:
                value = mul(value, weight)
            target = out.at((*position[:-rank], *(at for at, _ in corner)))
            body.append(Store(out.buffer, target, value, mode="add"))
        b.emit_in_order(axes, position[-rank:], body)
        return out

    return lowering


for _rank, _op, _backward in (
    (1, aten.upsample_linear1d, aten.upsample_linear1d_backward),
    (2, aten.upsample_bilinear2d, aten.upsample_bilinear2d_backward),
    (3, aten.upsample_trilinear3d, aten.upsample_trilinear3d_backward),
):
    lowers(_op.default, _op.vec)(_linear(_rank))
    lowers(_backward.default)(_linear_backward(_rank))
