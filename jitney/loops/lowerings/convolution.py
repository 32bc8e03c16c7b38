"""Convolution as a matrix product over patches, or, channel by channel, as a sum written out.

The image is first laid out so that a step along a row of the result is a step of one in memory
for every element of the window: a border of zeros, and for strides above one the rows and columns
of each remainder apart ("phases"). A patch is then an offset, and nothing is unfolded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from jitney.loops.lowerings.patches import is_row_major, patch_product
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten

#: Windows of so many elements are written out, so that lanes run along the image.
UNROLLED = 49
#: Columns computed for nothing, as a share of the result, that reading in whole vectors is worth.
WASTE = 1.16


@dataclass(frozen=True)
class Window:
    """A convolution's window by spatial dimension, in elements; ``out``: sizes of the result."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    def tiles(self) -> bool:
        """Whether windows neither overlap nor leave the image, as patches of a transformer."""
        return (
            self.size == self.stride
            and math.prod(self.size) > 1
            and not any(self.padding)
            and all(d == 1 for d in self.dilation)
        )

    def phases(self) -> list[int]:
        """How many remainders modulo the stride the window's elements fall on."""
        every = zip(self.size, self.stride, self.dilation, strict=True)
        return [1 + max(t * d % s for t in range(k)) for k, s, d in every]

    def spans(self) -> list[int]:
        """How many places of one phase are read."""
        every = zip(self.size, self.stride, self.dilation, self.out, strict=True)
        return [n + (k - 1) * d // s for k, s, d, n in every]

    def split(self, taps: Sequence[Index]) -> tuple[list[Index], list[Index]]:
        """Elements of the window as phases and offsets within them."""
        every = list(zip(taps, self.stride, self.dilation, strict=True))
        phases = [modulo(t * d, index(s)) for t, s, d in every]
        return phases, [floor_div(t * d, index(s)) for t, s, d in every]


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
    if out.numel.is_const and out.numel.const == 0:
        return out
    window = Window(
        tuple(size.const for size in weight.shape[2:]),
        _spread(stride, x.ndim - 2),
        _spread(padding, x.ndim - 2),
        _spread(dilation, x.ndim - 2),
        tuple(size.const for size in out.shape[2:]),
    )
    if b.target.kind == "cuda":
        if not window.tiles() or groups > 1 or x.dtype.itemsize > 2 or not is_row_major(weight):
            raise Refused("cuDNN's convolution is faster")
        return patch_product(b, out, x, weight, bias)
    image = _laid_out(b, x, window)
    if groups > 1 and weight.shape[1] == index(1):
        return _by_channel(b, out, image, weight, bias, window, groups)
    return _by_patches(b, out, image, weight, bias, window, groups)


def _spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One value for every dimension where only one is given."""
    return tuple(values) * (rank if len(values) == 1 else 1)


def _laid_out(b: Builder, x: StridedTensor, window: Window) -> StridedTensor:
    """``x`` as [n, c, phases…, places of a phase…], row-major in the places; x itself if it is."""
    phases, spans = window.phases(), window.spans()
    shape = (*x.shape[:2], *map(index, phases), *map(index, spans))
    rank = len(spans)
    if all(s == 1 for s in window.stride) and not any(window.padding):
        row_major = _row_major([size.const for size in x.shape[2:]])
        if list(x.strides[2:]) == row_major and list(map(index, spans)) == list(x.shape[2:]):
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
        pairs = zip(source, x.shape[2:], strict=True)
        mask = all_of(*(in_range(at, 0, size) for at, size in pairs))
        return x.load((*position[:2], *source), mask)

    return b.compute(out, value_at)


def _row_major(sizes: Sequence[int]) -> list[Index]:
    return [index(math.prod(sizes[d + 1 :])) for d in range(len(sizes))]


def _with_bias(total: Expr, bias: StridedTensor | None, channel: Index) -> Expr:
    return total if bias is None else add(total, cast(bias.load((channel,)), total.dtype))


def _by_channel(
    b: Builder,
    out: StridedTensor,
    image: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
    window: Window,
    groups: int,
) -> StridedTensor:
    """Each output channel reads one input channel: a sum over the window alone."""
    axes, position = b.axes(out.shape, strides=out.strides)
    channel = floor_div(position[1], floor_div(out.shape[1], index(groups)))
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
    result = cast(_with_bias(total, bias, position[1]), out.dtype)
    b.emit(axes, (*body, Store(out.buffer, out.at(position), result)))
    return out


def _by_patches(
    b: Builder,
    out: StridedTensor,
    image: StridedTensor,
    weight: StridedTensor,
    bias: StridedTensor | None,
    window: Window,
    groups: int,
) -> StridedTensor:
    """``out[n, g, m, place] = sum_k weight[g, m, k] * image[n, g, k's patch, place]``.

    k counts (channel, window). Places count the result's, or, where little is lost, the image's
    rows in full (``wide``): then B is read in vectors, and the result is cut out of a wider one.
    """
    channels, depth = floor_div(out.shape[1], index(groups)), weight.shape[1]
    batch, (sample, group) = b.axes((out.shape[0], index(groups)), "b")
    spans = window.spans()
    steps = _row_major(spans)
    extent = 1 + sum((n - 1) * s.const for n, s in zip(window.out, steps, strict=True))
    wide = extent <= WASTE * math.prod(window.out)
    m, k = Axis("m", channels), Axis("k", depth * math.prod(window.size))
    n = Axis("n", index(extent if wide else math.prod(window.out)))
    channel = group * channels + index(m)
    from_k = _digits(index(k), (depth, *map(index, window.size)))
    phases, moved = window.split(from_k[1:])
    place = [index(0)] * len(spans) if wide else _digits(index(n), out.shape[2:])
    start = [a + c for a, c in zip(place, moved, strict=True)]
    source = image.access((sample, group * depth + from_k[0], *phases, *start))
    target, at = out, out.at((sample, channel, *place))
    if wide:
        source = replace(source, index=source.index + index(n))
        target = _wide_result(b, out, spans)
        at = target.at((sample, channel, *place)) + index(n)
    acc = compute_dtype(image.dtype)
    value = cast(_with_bias(Ref("acc", acc), bias, channel), out.dtype)
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
    if list(out.strides[2:]) == _row_major(spans):
        return out
    full = b.allocate_as((*out.shape[:2], out.shape[2], *map(index, spans[1:])), out.dtype)
    return StridedTensor(full.buffer, full.dtype, out.shape, full.strides)


def _digits(number: Index, sizes: Sequence[Index]) -> list[Index]:
    """``number`` as a row-major position in ``sizes``."""
    digits: list[Index] = []
    for size in reversed(sizes[1:]):
        digits.insert(0, modulo(number, size))
        number = floor_div(number, size)
    return [number, *digits]
