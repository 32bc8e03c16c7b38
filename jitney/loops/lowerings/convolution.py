"""Convolution as a matrix product over patches, or, channel by channel, as a sum written out.

The image is first laid out so that a step along a row of the result is a step of one in memory
for every element of the window: a border of zeros, and for strides above one the rows and columns
of each remainder apart ("phases"). A patch is then an offset, and nothing is unfolded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from jitney.loops.index import Axis, Index, floor_div, index
from jitney.loops.ir import Expr, Gemm, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.convolution_channels_last import channels_last, is_channels_last
from jitney.loops.lowerings.expressions import (
    all_in_range,
    apply,
    cast,
    compute_dtype,
    const,
    mul,
)
from jitney.loops.lowerings.patches import is_row_major, patch_product
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window, digits, row_major, spread

aten = torch.ops.aten

#: Windows of so many elements are written out, so that lanes run along the image.
UNROLLED = 49
#: Columns computed for nothing, as a share of the result, that reading in whole vectors is worth.
WASTE = 1.16


@lowers(aten.convolution.default)
def convolution(
    b: Builder,
    x: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> StridedTensor:
    """x [n, c, …], weight [out channels, c / groups, …]; result [n, out channels, …]."""
    out = b.allocate()
    if transposed or out.ndim != x.ndim or not x.dtype.is_floating_point:
        raise Refused("a transposed convolution")
    if not all(size.is_const and size.const for size in (*weight.shape, *x.shape[1:])):
        raise Refused("a convolution with symbolic channels or image")
    if not all(isinstance(number, int) for number in (*stride, *padding, *dilation)):
        raise Refused("a convolution with symbolic steps")
    if out.numel.is_const and out.numel.const == 0:
        return out
    window = Window(
        tuple(size.const for size in weight.shape[2:]),
        spread(stride, x.ndim - 2),
        spread(padding, x.ndim - 2),
        spread(dilation, x.ndim - 2),
        tuple(size.const for size in out.shape[2:]),
    )
    if b.target.kind == "cuda":
        if not window.tiles() or groups > 1 or x.dtype.itemsize > 2 or not is_row_major(weight):
            raise Refused("cuDNN's convolution is faster")
        return patch_product(b, out, x, weight, bias)
    whole = Convolution(out, x, weight, bias, window, groups)
    if _between_places(x, out):
        return channels_last(b, whole)
    whole = replace(whole, x=_laid_out(b, x, window))
    if groups > 1 and whole.depth == 1:
        return _by_channel(b, whole)
    return _by_patches(b, whole)


def _between_places(x: StridedTensor, out: StridedTensor) -> bool:
    """Whether places are the rows of the product: the result's channels lie together."""
    if x.dtype not in (torch.float32, torch.float64) or not is_channels_last(out):
        return False
    return is_channels_last(x) if out.shape[1] == index(1) else out.strides[1] == index(1)


def _laid_out(b: Builder, x: StridedTensor, window: Window) -> StridedTensor:
    """``x`` as [n, c, phases…, places of a phase…], row-major in the places; x itself if it is."""
    phases, spans = window.phases(), window.spans()
    shape = (*x.shape[:2], *map(index, phases), *map(index, spans))
    rank = len(spans)
    if all(s == 1 for s in window.stride) and not any(window.padding):
        dense = row_major([size.const for size in x.shape[2:]])
        if list(x.strides[2:]) == dense and list(map(index, spans)) == list(x.shape[2:]):
            strides = (*x.strides[:2], *[index(0)] * rank, *x.strides[2:])
            return StridedTensor(x.buffer, x.dtype, shape, strides, x.offset)
    out = b.allocate_as(shape, x.dtype)

    def value_at(position: Position) -> Expr:
        every = zip(
            position[2 : 2 + rank],
            position[2 + rank :],
            window.stride,
            window.padding,
            strict=True,
        )
        source = [place * s + phase - p for phase, place, s, p in every]
        return x.load((*position[:2], *source), all_in_range(source, x.shape[2:]))

    return b.compute(out, value_at)


def _by_channel(b: Builder, whole: Convolution) -> StridedTensor:
    """Each output channel reads one input channel of the laid out image: a sum over the window
    alone."""
    out, image, weight, window = whole.out, whole.x, whole.weight, whole.window
    axes, position = b.axes(out.shape, strides=out.strides)
    channel = floor_div(position[1], index(whole.channels))
    acc = compute_dtype(image.dtype)

    def factors(taps: Sequence[Index]) -> tuple[Expr, Expr]:
        phases, moved = window.split(taps)
        places = [at + step for at, step in zip(position[2:], moved, strict=True)]
        element = image.load((position[0], channel, *phases, *places))
        filtered = weight.load((position[1], index(0), *taps))
        return cast(element, acc), cast(filtered, acc)

    body: tuple[Stmt, ...] = ()
    if math.prod(window.size) <= UNROLLED:
        total: Expr = const(0, acc)
        for taps in itertools.product(*(range(size) for size in window.size)):
            total = apply("fma", *factors([index(t) for t in taps]), total)
    else:
        reduced, at = b.axes([index(size) for size in window.size], "r")
        reduce, total = b.reduce(reduced, "sum", mul(*factors(at)))
        body = (reduce,)
    result = cast(whole.with_bias(total, position[1]), out.dtype)
    b.emit(axes, (*body, Store(out.buffer, out.at(position), result)))
    return out


def _by_patches(b: Builder, whole: Convolution) -> StridedTensor:
    """``out[n, g, m, place] = sum_k weight[g, m, k] * image[n, g, k's patch, place]``.

    k counts (channel, window). Places count the result's, or, where little is lost, the image's
    rows in full (``wide``): then B is read in vectors, and the result is cut out of a wider one.
    """
    out, image, weight, window = whole.out, whole.x, whole.weight, whole.window
    channels, depth = index(whole.channels), index(whole.depth)
    batch, (sample, group) = b.axes((out.shape[0], index(whole.groups)), "b")
    spans = window.spans()
    steps = row_major(spans)
    extent = 1 + sum((n - 1) * s.const for n, s in zip(window.out, steps, strict=True))
    wide = extent <= WASTE * math.prod(window.out)
    m, k = Axis("m", channels), Axis("k", depth * math.prod(window.size))
    n = Axis("n", index(extent if wide else math.prod(window.out)))
    channel = group * channels + index(m)
    from_k = digits(index(k), (depth, *map(index, window.size)))
    phases, moved = window.split(from_k[1:])
    place = [index(0)] * len(spans) if wide else digits(index(n), out.shape[2:])
    start = [a + c for a, c in zip(place, moved, strict=True)]
    source = image.access((sample, group * depth + from_k[0], *phases, *start))
    target, at = out, out.at((sample, channel, *place))
    if wide:
        source = replace(source, index=source.index + index(n))
        target = _wide_result(b, out, spans)
        at = target.at((sample, channel, *place)) + index(n)
    acc = compute_dtype(image.dtype)
    value = cast(whole.with_bias(Ref("acc", acc), channel), out.dtype)
    b.nodes.append(
        Gemm(
            b.fresh(f"{b.node.name}_gemm"),
            batch,
            m,
            n,
            k,
            weight.access((channel, *from_k)),
            source,
            acc,
            (Store(target.buffer, at, value),),
            origins=(b.node.name,),
        )
    )
    return out if target is out else b.copy(out, target)


def _wide_result(b: Builder, out: StridedTensor, spans: Sequence[int]) -> StridedTensor:
    """Where a product over whole rows goes: ``out`` if its rows are as long, else a temporary
    seen with the shape of ``out``."""
    if list(out.strides[2:]) == row_major(spans):
        return out
    full = b.allocate_as((*out.shape[:2], out.shape[2], *map(index, spans[1:])), out.dtype)
    return StridedTensor(full.buffer, full.dtype, out.shape, full.strides)
