"""The gradient of a 3x3 filter with half the multiplications: the transposed algorithm.

Four gradients of a row of results, and the six elements of the image under them, become six values
each; products of these, summed over places, are the gradient of the transformed filter, from which
that of the filter follows. The matrices are those of `convolution_transformed`. A large element
takes digits of its own channels' sums only, which hold it anyway; one that is not finite leaves the
call to eager.
"""

from __future__ import annotations

import math

import torch

from jitney.loops.index import index
from jitney.loops.ir import Expr, Stmt, Store
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.convolution_filter_gradient import filter_gradient
from jitney.loops.lowerings.convolution_transformed import (
    FILTER,
    GIVEN,
    RESULT,
    TAKEN,
    combined,
    transformed_image,
)
from jitney.loops.lowerings.expressions import apply, const, in_range
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window


def transformed_filter_gradient(b: Builder, whole: Convolution) -> None:
    """Fills ``weight`` [out channels, c, 3, 3]; ``out`` holds the result's gradient, both it and
    ``x`` channels-last."""
    weight, rows = whole.weight, whole.window.out[0]
    tiles = -(-whole.window.out[1] // GIVEN)
    image = transformed_image(b, whole.x, whole.window, tiles)
    results = _results(b, whole.out, tiles)
    filters, depth, height, _ = weight.shape
    sums = b.allocate_as((index(TAKEN), filters, depth, height, index(1)), weight.dtype)
    window = Window((int(height), 1), (1, 1), (0, 0), (1, 1), (rows, tiles))
    for i in range(TAKEN):
        x, out = (t.select(0, i).permute((0, 3, 1, 2)) for t in (image, results))
        filter_gradient(b, Convolution(out, x, sums.select(0, i), None, window, 1))
    axes, position = b.axes((filters, depth, height))
    body: list[Stmt] = []
    values: list[Expr] = []
    for i in range(TAKEN):
        named, total = b.let("sum", sums.load((index(i), *position, index(0))))
        body.append(named)
        values.append(total)
    for t in range(3):
        gradient = combined([line[t] for line in FILTER], values)
        body.append(Store(weight.buffer, weight.at((*position, index(t))), gradient))
    check = b.check()
    for value in values:
        finite = apply("lt", apply("abs", value), const(math.inf, weight.dtype))
        body.append(Store(check, index(0), const(True, torch.bool), apply("not", finite)))
    b.emit(axes, body)


def _results(b: Builder, grad: StridedTensor, tiles: int) -> StridedTensor:
    """[6, n, row, tile, out channel]."""
    n, c, rows, width = grad.shape
    made = b.allocate_as((index(TAKEN), n, rows, index(tiles), c), grad.dtype)
    axes, position = b.axes((n, rows, index(tiles), c))
    sample, row, tile, channel = position
    body: list[Stmt] = []
    values: list[Expr] = []
    for place in range(GIVEN):
        column = tile * GIVEN + place
        inside = in_range(column, 0, width)
        named, value = b.let("gradient", grad.load((sample, channel, row, column), inside))
        body.append(named)
        values.append(value)
    for i in range(TAKEN):
        total = combined([line[i] for line in RESULT], values)
        body.append(Store(made.buffer, made.at((index(i), *position)), total))
    b.emit(axes, body)
    return made
