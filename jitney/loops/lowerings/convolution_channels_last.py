"""Convolution of images whose channels lie together: places are rows of a product.

A row's k runs over the channels at each element of the window; elements in the border are zeros
that the product reads under a mask, so the image is neither copied nor unfolded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Expr, Gemm, Ref, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.convolution_transformed import transformed, worth_transforming
from jitney.loops.lowerings.expressions import all_in_range, apply, cast, const
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, digits

#: Fewer input channels than this are too short to be read by themselves.
FEW = 8


def is_channels_last(x: StridedTensor) -> bool:
    """Whether [n, c, h, w] lies in memory as [n, h, w, c], dense."""
    if x.ndim != 4:
        return False
    _, c, h, w = x.shape
    wanted = (h * w * c, index(1), w * c, c)
    pairs = zip(x.shape, x.strides, wanted, strict=True)
    return all(s == t for n, s, t in pairs if n != index(1))


def channels_last(b: Builder, whole: Convolution) -> StridedTensor:
    """Fills ``out``, whose channels lie together; x and weight as `aten.convolution` has them."""
    x, weight = whole.x, whole.weight
    if whole.groups > 1 and whole.depth == whole.channels == 1:
        return _depthwise(b, whole)
    if x.strides[1] != index(1) or whole.depth < FEW:
        whole = replace(bordered(b, whole), weight=_taps_first(b, weight))
    once = b.frozen and b.is_parameter(weight.buffer)
    if x.dtype == torch.float32 and b.rerunnable and worth_transforming(whole, once):
        return transformed(b, whole)
    return _as_product(b, whole)


def bordered(b: Builder, whole: Convolution) -> Convolution:
    """x as channels-last: what the window reads of it and of the zeros around it, from its first
    place on; and the window without padding."""
    x, window = whole.x, whole.window
    n, c, *image = x.shape
    sizes = [index(size) for size in window.reach()]
    dense = b.allocate_as((n, *sizes, c), x.dtype).permute((0, 3, 1, 2))

    def value_at(position: Position) -> Expr:
        source = [at - p for at, p in zip(position[2:], window.padding, strict=True)]
        return x.load((*position[:2], *source), all_in_range(source, image))

    inside = replace(window, padding=(0,) * len(image))
    return replace(whole, x=b.compute(dense, value_at), window=inside)


def _taps_first(b: Builder, weight: StridedTensor) -> StridedTensor:
    """The weight with its channels last in memory, as the rows of a bordered image have them."""
    out, c, *size = weight.shape
    dense = b.allocate_as((out, *size, c), weight.dtype).permute((0, 3, 1, 2))
    return b.copy(dense, weight)


def _as_product(b: Builder, whole: Convolution) -> StridedTensor:
    """``out[place, g, n] = sum_k patch[place, g, k] * weight[g, n, k]``; k counts as the weight
    lies in memory."""
    out, x, weight, window = whole.out, whole.x, whole.weight, whole.window
    channels, depth = whole.channels, whole.depth
    batch, (group,) = b.axes((index(whole.groups),), "b")
    m = Axis("m", out.shape[0] * math.prod(window.out))
    n, k = Axis("n", index(channels)), Axis("k", index(depth * math.prod(window.size)))
    sample, *place = digits(index(m), (out.shape[0], *map(index, window.out)))
    sizes = list(map(index, window.size))
    if depth > 1 and abs(int(weight.strides[1])) < abs(int(weight.strides[3])):
        *taps, channel = digits(index(k), (*sizes, index(depth)))
    else:
        channel, *taps = digits(index(k), (index(depth), *sizes))
    source = window.source(place, taps)
    mask = all_in_range(source, x.shape[2:])
    position = (sample, group * depth + channel, *source)
    acc = x.dtype
    column = group * channels + n
    target = out.offset + index(m) * out.shape[1] + column
    if not is_channels_last(out):
        target = out.at((sample, column, *place))
    value = cast(whole.with_bias(Ref("acc", acc), column), out.dtype)
    rows = (m, x.access(position))
    columns = (n, weight.access((column, channel, *taps)))
    if out.shape[1] == index(1) and mask is None and math.prod(window.size) == 1:
        rows, columns = columns, rows  # one channel: a product of few rows instead
    b.nodes.append(
        Gemm(
            b.fresh(f"{b.node.name}_gemm"),
            batch,
            rows[0],
            columns[0],
            k,
            rows[1],
            columns[1],
            acc,
            (Store(out.buffer, target, value),),
            a_value=None if mask is None else x.load(position, mask),
            b_is_parameter=b.is_parameter(columns[1].buffer),
            origins=(b.node.name,),
        )
    )
    return out


def _depthwise(b: Builder, whole: Convolution) -> StridedTensor:
    """Each channel by itself, lanes along channels; the weight is laid out with them last."""
    x, weight, window = whole.x, whole.weight, whole.window
    taps_last = b.allocate_as((*weight.shape[2:], weight.shape[0]), weight.dtype)
    filters = b.copy(taps_last.permute((2, 0, 1)), weight.select(1, 0))

    def value_at(position: Position) -> Expr:
        total: Expr = const(0, x.dtype)
        for taps in itertools.product(*map(range, window.size)):
            at: Sequence[Index] = [index(t) for t in taps]
            source = window.source(position[2:], at)
            element = x.load((*position[:2], *source), all_in_range(source, x.shape[2:]))
            total = apply("fma", element, filters.load((position[1], *at)), total)
        return whole.with_bias(total, position[1])

    return b.compute(whole.out, value_at)
