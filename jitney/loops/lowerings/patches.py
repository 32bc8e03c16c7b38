"""Convolutions whose windows tile the image (a vision transformer's patches) as one product."""

from __future__ import annotations

import math
from dataclasses import replace

from jitney.loops.index import Index, index
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import add, cast
from jitney.loops.lowerings.matmul import emit_product
from jitney.loops.lowerings.strided import StridedTensor


def patch_product(
    b: Builder,
    out: StridedTensor,
    x: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
) -> StridedTensor:
    """``out`` [n, channels, places…] for windows without overlap, border or gap.

    The image is laid out once as [n, places…, c, window…]; a row of that times ``weight``
    (contiguous [channels, c, window…]) is one place's result, channels last.
    """
    places, window = out.shape[2:], weight.shape[2:]
    patches = b.allocate_as((x.shape[0], *places, *weight.shape[1:]), x.dtype)
    rank = len(places)

    def element(position: Position) -> Expr:
        corner, inside = position[1 : 1 + rank], position[2 + rank :]
        where = [p * size + i for p, size, i in zip(corner, window, inside, strict=True)]
        return x.load((position[0], position[1 + rank], *where))

    b.compute(patches, element)
    made = b.allocate_as((x.shape[0], *places, out.shape[1]), out.dtype)
    rows, columns = _rows(patches, rank + 1), _rows(weight, 1).transpose()

    def with_bias(total: Expr, position: Position) -> Expr:
        return total if bias is None else add(total, cast(bias.load(position[1:]), total.dtype))

    emit_product(b, _rows(made, rank + 1), rows, columns, with_bias)
    return b.copy(out, made.permute((0, rank + 1, *range(1, rank + 1))))


def is_row_major(x: StridedTensor) -> bool:
    """Whether the elements lie one after the other, the last dimension fastest."""
    step = index(1)
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size != index(1) and stride != step:
            return False
        step = step * size
    return True


def _rows(x: StridedTensor, leading: int) -> StridedTensor:
    """A row-major tensor as a matrix: its first ``leading`` dimensions by the others."""
    shape = (_product(x.shape[:leading]), _product(x.shape[leading:]))
    return replace(x, shape=shape, strides=(shape[1], index(1)))


def _product(sizes: tuple[Index, ...]) -> Index:
    return math.prod(sizes, start=index(1))
