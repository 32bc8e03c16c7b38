"""Convolution as a matrix product over patches, or, channel by channel, as a plain reduction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney.loops.index import Axis, Index, floor_div, index, modulo
from jitney.loops.ir import Expr, Gemm, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    all_of,
    apply,
    cast,
    compute_dtype,
    const,
    in_range,
    mul,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten

#: Windows of so many elements are written out, so that lanes run along the image.
UNROLLED = 49


@dataclass(frozen=True)
class Kernel:
    """The window of a convolution: sizes, steps and dilations by spatial dimension; groups."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


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
    kernel = _kernel(x, weight, stride, dilation, groups)
    if transposed or out.ndim != x.ndim or not x.dtype.is_floating_point:
        raise Refused("a transposed convolution")
    if any(size.is_const and size.const == 0 for size in (*out.shape, *x.shape)):
        raise Refused("a convolution of nothing")
    padded = _padded(b, x, tuple(padding))
    if kernel.groups > 1 and weight.shape[1] == index(1):
        return _by_channel(b, out, padded, weight, bias, kernel)
    return _by_patches(b, out, padded, weight, bias, kernel)


def _kernel(
    x: StridedTensor,
    weight: StridedTensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Kernel:
    sizes = weight.shape[2:]
    if not all(size.is_const for size in weight.shape) or not x.shape[1].is_const:
        raise Refused("a convolution with symbolic channels or window")
    return Kernel(tuple(s.const for s in sizes), tuple(stride), tuple(dilation), groups)


def _padded(b: Builder, x: StridedTensor, padding: tuple[int, ...]) -> StridedTensor:
    """``x`` with a border of zeros: windows then read without asking where they are."""
    if not any(padding):
        return x
    sizes = [size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True)]
    out = b.allocate_as((*x.shape[:2], *sizes), x.dtype)

    def value_at(position: Position) -> Expr:
        inner = [at - p for at, p in zip(position[2:], padding, strict=True)]
        pairs = zip(inner, x.shape[2:], strict=True)
        mask = all_of(*(in_range(at, 0, size) for at, size in pairs))
        return x.load((*position[:2], *inner), mask)

    return b.compute(out, value_at)


def _with_bias(total: Expr, bias: StridedTensor | None, channel: Index) -> Expr:
    return total if bias is None else add(total, cast(bias.load((channel,)), total.dtype))


def _by_channel(
    b: Builder,
    out: StridedTensor,
    x: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
    kernel: Kernel,
) -> StridedTensor:
    """Each output channel reads one input channel: a reduction over the window alone."""
    axes, position = b.axes(out.shape, strides=out.strides)
    channel = floor_div(position[1], floor_div(out.shape[1], index(kernel.groups)))
    acc = compute_dtype(x.dtype)

    def product(steps: Sequence[Index]) -> tuple[Expr, Expr]:
        source = (position[0], channel, *_source(position[2:], steps, kernel))
        filtered = weight.load((position[1], index(0), *steps))
        return cast(x.load(source), acc), cast(filtered, acc)

    if math.prod(kernel.sizes) <= UNROLLED:
        body: list[Stmt] = []
        total: Expr = const(0, acc)
        for steps in itertools.product(*(range(size) for size in kernel.sizes)):
            total = apply("fma", *product([index(s) for s in steps]), total)
    else:
        window, at = b.axes([index(s) for s in kernel.sizes], "r")
        reduce, total = b.reduce(window, "sum", mul(*product(at)))
        body = [reduce]
    result = cast(_with_bias(total, bias, position[1]), out.dtype)
    b.emit(axes, (*body, Store(out.buffer, out.at(position), result)))
    return out


def _source(position: Sequence[Index], steps: Sequence[Index], kernel: Kernel) -> list[Index]:
    return [
        at * stride + step * dilation
        for at, step, stride, dilation in zip(
            position, steps, kernel.stride, kernel.dilation, strict=True
        )
    ]


def _by_patches(
    b: Builder,
    out: StridedTensor,
    x: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
    kernel: Kernel,
) -> StridedTensor:
    """``out[n, g, m, pixel] = sum_k weight[g, m, k] * patch[n, g, k, pixel]``.

    k counts (channel, window) and pixel counts the output's places, both row-major; nothing is
    unfolded in memory, B's index does it.
    """
    channels = floor_div(out.shape[1], index(kernel.groups))
    depth = weight.shape[1]
    pixels, inner = index(1), depth
    for size in out.shape[2:]:
        pixels = pixels * size
    for extent in kernel.sizes:
        inner = inner * extent
    batch, (sample, group) = b.axes((out.shape[0], index(kernel.groups)), "b")
    m, n, k = Axis("m", channels), Axis("n", pixels), Axis("k", inner)
    channel = group * channels + index(m)
    place = _digits(index(n), out.shape[2:])
    from_k = _digits(index(k), (depth, *(index(s) for s in kernel.sizes)))
    source = (sample, group * depth + from_k[0], *_source(place, from_k[1:], kernel))
    acc = compute_dtype(x.dtype)
    value = cast(_with_bias(Ref("acc", acc), bias, channel), out.dtype)
    b.nodes.append(
        Gemm(
            b.fresh(f"{b.node.name}_gemm"),
            batch,
            m,
            n,
            k,
            weight.access((channel, *from_k)),
            x.access(source),
            acc,
            (Store(out.buffer, out.at((sample, channel, *place)), value),),
            origins=(b.node.name,),
        )
    )
    return out


def _digits(number: Index, sizes: Sequence[Index]) -> list[Index]:
    """``number`` as a row-major position in ``sizes``."""
    digits: list[Index] = []
    for size in reversed(sizes[1:]):
        digits.insert(0, modulo(number, size))
        number = floor_div(number, size)
    return [number, *digits]
