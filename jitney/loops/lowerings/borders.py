"""Padding by elements of the image itself: its edge repeated, or the image mirrored at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Expr, Let, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import apply, as_expr, const, index_expr
from jitney.loops.lowerings.registry import Lowering, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Size = int | Index
#: Where an element comes from: its place counted from the image's start, and the last place there.
Border = Callable[[Index, Index], Expr]


def _nearest_inside(place: Index, last: Index) -> Expr:
    """Where a border takes its elements from that repeats the edge."""
    held = apply("min", index_expr(place), as_expr(last, torch.int64))
    return apply("max", held, const(0, torch.int64))


def _mirrored(place: Index, last: Index) -> Expr:
    """Where a border takes its elements from that is narrower than the image, mirrored in it."""
    held = apply("min", index_expr(place), index_expr(last * 2 - place))
    return apply("max", held, index_expr(-place))


def _inside(
    b: Builder, place: Position, sizes: Sequence[Index], pad: Sequence[Size], border: Border
) -> tuple[list[Let], list[Index]]:
    """Statements, then where in the image a place of the padded one is taken from."""
    lets: list[Let] = []
    source: list[Index] = []
    for d, (at, size) in enumerate(zip(place, sizes, strict=True)):
        before, after = (index(p) for p in pad[2 * (len(sizes) - 1 - d) :][:2])
        at = at - before
        if all(p.is_const and p.const <= 0 for p in (before, after)):
            source.append(at)
            continue
        named, inside = b.let_place("at", border(at, size - 1))
        lets.append(named)
        source.append(inside)
    return lets, source


def _border_pad(rank: int, border: Border) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, pad: Sequence[Size]) -> StridedTensor:
        """Each element is one of the image."""
        if x.dtype is torch.bool:
            raise Refused("eager has no such kernel, and raises")
        out = b.allocate()
        axes, position = b.axes(out.shape, strides=out.strides)
        lets, source = _inside(b, position[-rank:], x.shape[-rank:], pad, border)
        value = x.load((*position[:-rank], *source))
        b.emit(axes, (*lets, Store(out.buffer, out.at(position), value)))
        return out

    return lowering


def _replication_pad_backward(rank: int) -> Lowering:
    def lowering(
        b: Builder, grad: StridedTensor, x: StridedTensor, pad: Sequence[Size]
    ) -> StridedTensor:
        """Each gradient added to the nearest element inside; planes are independent."""
        if grad.dtype not in (torch.float32, torch.float64):
            raise Refused("gradients added up in 16-bit floats")
        out = b.fill(b.allocate(), 0)
        axes, position = b.axes(grad.shape)
        lets, target = _inside(b, position[-rank:], x.shape[-rank:], pad, _nearest_inside)
        at = out.at((*position[:-rank], *target))
        stored = Store(out.buffer, at, grad.load(position), mode="add")
        b.emit_in_order(axes, position[-rank:], (*lets, stored))
        return out

    return lowering


for _rank, _reflect, _repeat, _repeat_backward in (
    (1, aten.reflection_pad1d, aten.replication_pad1d, aten.replication_pad1d_backward),
    (2, aten.reflection_pad2d, aten.replication_pad2d, aten.replication_pad2d_backward),
    (3, aten.reflection_pad3d, aten.replication_pad3d, aten.replication_pad3d_backward),
):
    lowers(_reflect.default)(_border_pad(_rank, _mirrored))
    lowers(_repeat.default)(_border_pad(_rank, _nearest_inside))
    lowers(_repeat_backward.default)(_replication_pad_backward(_rank))
