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


def _step(have: int, want: int, scale: float | None) -> torch.Tensor:
    """Input elements by output element, in single precision as eager has it."""
    if scale is not None and scale > 0:
        return torch.tensor(1.0 / scale, dtype=torch.float32)
    return torch.tensor(have, dtype=torch.float32) / want


def _check_nearest(have: int, want: int, scale: float | None) -> None:
    """Refuses unless eager's ``floor(i * step)`` is ``i * have // want`` for every i."""
    at = torch.arange(want, dtype=torch.float32) * _step(have, want, scale)
    eager = at.floor().long().clamp(max=have - 1)
    if not torch.equal(eager, torch.arange(want) * have // want):
        raise Refused("a scale that is not the ratio of the sizes")


def _nearest(rank: int) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, size: object, *scales: object) -> StridedTensor:
        sizes = _sizes(b, x, rank)
        for (have, want), scale in zip(sizes, _scales_of(scales, rank), strict=True):
            _check_nearest(have, want, scale)

        def value_at(position: Position) -> Expr:
            at = [
                floor_div(p * have, index(want))
                for p, (have, want) in zip(position[-rank:], sizes, strict=True)
            ]
            return x.load((*position[:-rank], *at))

        return b.compute(b.allocate(), value_at)

    return lowering


def _nearest_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder, grad: StridedTensor, _out: object, _in: object, *scales: object
    ) -> StridedTensor:
        """Each input sums the gradients of the whole block it was repeated to."""
        sizes = [(have, want) for want, have in _sizes(b, grad, rank)]
        if any(want % have for have, want in sizes):
            raise Refused("blocks of unequal size")
        for (have, want), scale in zip(sizes, _scales_of(scales, rank), strict=True):
            _check_nearest(have, want, scale)
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        factors = [want // have for have, want in sizes]
        reduced, steps = b.axes([index(f) for f in factors], "r")
        at = [p * f + s for p, f, s in zip(position[-rank:], factors, steps, strict=True)]
        value = cast(grad.load((*position[:-rank], *at)), compute_dtype(grad.dtype))
        reduce, total = b.reduce(reduced, "sum", value)
        b.emit(axes, (reduce, Store(out.buffer, out.at(position), cast(total, out.dtype))))
        return out

    return lowering


for _rank, _op, _backward in (
    (1, aten.upsample_nearest1d, aten.upsample_nearest1d_backward),
    (2, aten.upsample_nearest2d, aten.upsample_nearest2d_backward),
    (3, aten.upsample_nearest3d, aten.upsample_nearest3d_backward),
):
    lowers(_op.default, _op.vec)(_nearest(_rank))
    lowers(_backward.default)(_nearest_backward(_rank))


# ---------------------------------------------------------------- linear


def _linear(rank: int) -> Lowering:
    def lowering(
        b: Builder, x: StridedTensor, size: object, align_corners: bool, *scales: object
    ) -> StridedTensor:
        """The mean of the two neighbours along each dimension, weighted by nearness."""
        if not x.dtype.is_floating_point:
            raise Refused("an interpolation of integers")
        sizes = _sizes(b, x, rank)
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        acc = compute_dtype(x.dtype)
        body: list[Stmt] = []
        sides = []
        for d, scale in enumerate(_scales_of(scales, rank)):
            step = _linear_step(*sizes[d], scale, align_corners)
            lets, near = _neighbours(b, position[d - rank], sizes[d][0], step, align_corners, acc)
            body.extend(lets)
            sides.append(near)
        total: Expr | None = None
        for corner in itertools.product(*sides):
            value = cast(x.load((*position[:-rank], *(at for at, _ in corner))), acc)
            for _, weight in corner:
                value = mul(value, weight)
            total = value if total is None else add(total, value)
        assert total is not None
        body.append(Store(out.buffer, out.at(position), cast(total, out.dtype)))
        b.emit(axes, body)
        return out

    return lowering


def _linear_step(have: int, want: int, scale: float | None, align_corners: bool) -> float:
    if align_corners:
        return (have - 1) / (want - 1) if want > 1 else 0.0
    return float(_step(have, want, scale))


def _neighbours(
    b: Builder, at: Index, have: int, step: float, align_corners: bool, acc: torch.dtype
) -> tuple[list[Let], list[tuple[Index, Expr]]]:
    """Statements, then (position, weight) of the neighbour below and of the one above."""
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


for _rank, _op in (
    (1, aten.upsample_linear1d),
    (2, aten.upsample_bilinear2d),
    (3, aten.upsample_trilinear3d),
):
    lowers(_op.default, _op.vec)(_linear(_rank))
