"""A 3x3 convolution with half the multiplications: Winograd's F(4, 3) along image rows.

Four neighbouring results of a three-element filter need 12 multiplications written out, 6 in a
transformed space (Winograd 1980; Lavin and Gray 2016, section 4.1). Rows of the image become 6
values for every 4 places, of which one batched product over (channels, window rows) makes the
transformed results. Points 0, 1, -1, 1/2, -2 and infinity lose the least: the mean error is 3.4
times that of the plain sum, against 7 for the same in both directions.
An infinite or NaN element makes up to four places of its rows NaN that the plain sum leaves alone,
and a large one takes the digits of its neighbours. So a call is left to eager by a check where an
element dominates its image (`DOMINANT`), or a product is not below `LARGEST`: infinity and NaN stay
such on the way. What passes is within four times eager's error at every place, in units of the
typical result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, Index, floor_div, index, modulo
from jitney.loops.ir import Expr, Gemm, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    all_in_range,
    apply,
    as_expr,
    const,
    div,
    index_expr,
    maximum,
    mul,
)
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window, digits

#: Places a tile gives, and values it takes: 4 results of a filter of 3.
GIVEN, TAKEN = 4, 6
#: What the image's, the filter's and the result's transformation multiply by.
IMAGE = (
    (1, -1.5, -2, 1.5, 1, 0),
    (0, -1, 0.5, 2.5, 1, 0),
    (0, 1, -2.5, 0.5, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 0.5, -1, -0.5, 1, 0),
    (0, 1, -1.5, -2, 1.5, 1),
)
FILTER = (
    (1, 0, 0),
    (1 / 3, 1 / 3, 1 / 3),
    (-1 / 3, 1 / 3, -1 / 3),
    (-16 / 15, -8 / 15, -4 / 15),
    (1 / 15, -2 / 15, 4 / 15),
    (0, 0, 1),
)
RESULT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 0.5, -2, 0),
    (0, 1, 1, 0.25, 4, 0),
    (0, 1, -1, 0.125, -8, 1),
)
#: Products below this in magnitude make finite results. Activations stay below it, values that
#: stand for "masked" do not.
LARGEST = 1e6
#: An element larger than this times sqrt(channels) and the image's mean magnitude dominates: its
#: neighbours' error goes with it, and eager's with the sum over the channels.
DOMINANT = 16
#: About as many rows of an image tell its mean.
SAMPLED = 4
#: Multiply-adds in the time one element of the image, the result or the filter is transformed, or
#: one more element of the filter is read.
MOVE, FILTER_MOVE, FILTER_READ = 28, 40, 14


def worth_transforming(whole: Convolution, once: bool) -> Decision:
    """Whether the multiplications saved outweigh what is moved; ``once``: the filter is not
    transformed in each call."""
    out, window = whole.out, whole.window
    if (window.size, window.stride, window.dilation) != ((3, 3), (1, 1), (1, 1)):
        return no("only a 3x3 window that moves by one has such a form here")
    if not out.shape[0].is_const:
        return no("the batch is symbolic")
    depth, channels = whole.depth, int(out.shape[1])
    rows = int(out.shape[0]) * window.out[0]
    tiles = rows * -(-window.out[1] // GIVEN)
    plain = 9 * depth * channels * rows * window.out[1]
    fewer = 3 * TAKEN * depth * channels * tiles
    moved = TAKEN * tiles * (depth * whole.groups + channels) * MOVE
    filters = 9 * FILTER_READ if once else 3 * TAKEN * FILTER_MOVE
    moved += filters * depth * channels
    if 1.1 * (fewer + moved) > plain:
        return no(f"moving costs {moved / plain:.2f} of the sum, {fewer / plain:.2f} remain")
    return yes(f"{fewer / plain:.2f} of the multiplications, moving costs {moved / plain:.2f}")


def transformed(b: Builder, whole: Convolution) -> StridedTensor:
    """Fills ``out`` [n, c, h, w], channels-last, from a channels-last x."""
    out, window = whole.out, whole.window
    tiles = -(-window.out[1] // GIVEN)
    bounds = None  # gradients are sparse, few elements their scale: there the largest tells
    if not b.node.meta.get("backward"):
        bounds = _bounds(b, whole.x, DOMINANT * math.sqrt(whole.depth))
    image = transformed_image(b, whole.x, window, tiles, bounds)
    filters = _filters(b, whole.weight)
    products = b.allocate_as(
        (index(TAKEN), out.shape[0], index(window.out[0]), index(tiles), out.shape[1]), out.dtype
    )
    _multiply(b, products, image, filters, whole.groups)

    def value_at(position: Position) -> Expr:
        n, channel, row, column = position
        tile, place = floor_div(column, index(GIVEN)), modulo(column, index(GIVEN))
        total: Expr | None = None
        for i in range(TAKEN):
            factor = _chosen([line[i] for line in RESULT], place, out)
            value = products.load((index(i), n, row, tile, channel))
            total = mul(factor, value) if total is None else apply("fma", factor, value, total)
        assert total is not None
        return whole.with_bias(total, channel)

    return b.compute(out, value_at)


def _bounds(b: Builder, x: StridedTensor, most: float) -> StridedTensor:
    """``most`` times the mean magnitude of each sample, judged by a few of its rows."""
    n, c, height, width = x.shape
    apart = -(-int(height.const) // SAMPLED)
    rows = int(height.const) // apart
    bounds = b.allocate_as((n,), x.dtype)
    samples, (sample,) = b.axes((n,))
    within, (row, column, channel) = b.axes((index(rows), width, c), "r")
    value = x.load((sample, channel, row * apart + apart // 2, column))
    found, total = b.reduce(within, "sum", apply("abs", value))
    bound = mul(total, div(const(most / rows, x.dtype), as_expr(c * width, x.dtype)))
    b.emit(samples, (found, Store(bounds.buffer, bounds.at((sample,)), bound)))
    return bounds


def transformed_image(
    b: Builder, x: StridedTensor, window: Window, tiles: int, bounds: StridedTensor | None = None
) -> StridedTensor:
    """[6, n, row with its border, tile, c]; checks that no element is beyond ``bounds``, by n."""
    n, c, *size = x.shape
    rows = window.out[0] + 2
    image = b.allocate_as((index(TAKEN), n, index(rows), index(tiles), c), x.dtype)
    axes, position = b.axes((n, index(rows), index(tiles), c))
    sample, row, tile, channel = position
    body: list[Stmt] = []
    values: list[Expr] = []
    for j in range(TAKEN):
        source = (row - window.padding[0], tile * GIVEN + (j - window.padding[1]))
        element = x.load((sample, channel, *source), all_in_range(source, size))
        named, value = b.let("element", element)
        body.append(named)
        values.append(value)
    if bounds is not None:
        largest = reduce(maximum, (apply("abs", value) for value in values))
        beyond = apply("gt", largest, bounds.load((sample,)))
        body.append(Store(b.check(), index(0), const(True, torch.bool), beyond))
    for i, line in enumerate(IMAGE):
        place = image.at((index(i), *position))
        body.append(Store(image.buffer, place, combined(line, values)))
    b.emit(axes, body)
    return image


def _filters(b: Builder, weight: StridedTensor) -> StridedTensor:
    """[6, out channel, c, window row]."""
    out, c, height, width = weight.shape
    filters = b.allocate_as((index(TAKEN), out, c, height), weight.dtype)
    axes, position = b.axes((out, c, height))
    body: list[Stmt] = []
    values: list[Expr] = []
    for j in range(int(width)):
        named, value = b.let("weight", weight.load((*position, index(j))))
        body.append(named)
        values.append(value)
    for i, line in enumerate(FILTER):
        place = filters.at((index(i), *position))
        body.append(Store(filters.buffer, place, combined(line, values)))
    b.emit(axes, body)
    return filters


def _multiply(
    b: Builder,
    products: StridedTensor,
    image: StridedTensor,
    filters: StridedTensor,
    groups: int,
) -> None:
    """products[i, place, g, n] = the sum over (c, window row) of image times filters."""
    _, samples, rows, tiles, out = products.shape
    depth, height = filters.shape[2:]
    channels = floor_div(out, index(groups))
    batch, (i, group) = b.axes((index(TAKEN), index(groups)), "b")
    m = Axis("m", samples * rows * tiles)
    n, k = Axis("n", channels), Axis("k", depth * height)
    sample, row, tile = digits(index(m), (samples, rows, tiles))
    channel, tap = digits(index(k), (depth, height))
    column = group * channels + n
    check = b.check()
    acc = Ref("acc", products.dtype)
    small = apply("lt", apply("abs", acc), const(LARGEST, products.dtype))
    b.nodes.append(
        Gemm(
            b.fresh(f"{b.node.name}_gemm"),
            batch,
            m,
            n,
            k,
            image.access((i, sample, row + tap, tile, group * depth + channel)),
            filters.access((i, column, channel, tap)),
            products.dtype,
            (Store(products.buffer, products.at((i, sample, row, tile, column)), acc),
             Store(check, index(0), const(True, torch.bool), apply("not", small))),
            origins=(b.node.name,),
        )
    )  # fmt: skip


def combined(line: Sequence[float], values: Sequence[Expr]) -> Expr:
    """The sum of ``line`` times ``values``, zeros left out."""
    total: Expr | None = None
    for factor, value in zip(line, values, strict=True):
        if factor == 0:
            continue
        weight = const(factor, value.dtype)
        total = mul(weight, value) if total is None else apply("fma", weight, value, total)
    assert total is not None
    return total


def _chosen(factors: Sequence[float], place: Index, like: StridedTensor) -> Expr:
    """``factors[place]``."""
    chosen: Expr = const(factors[-1], like.dtype)
    for number, factor in reversed([*enumerate(factors)][:-1]):
        here = apply("eq", index_expr(place), index_expr(index(number)))
        if all(f == factor for f in factors[number:]):
            chosen = const(factor, like.dtype)
        else:
            chosen = apply("where", here, const(factor, like.dtype), chosen)
    return chosen
