"""Gradients of a convolution as matrix products on images whose channels lie together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from jitney.loops.index import Index
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.channel_sums import channels, sums_by_channel
from jitney.loops.lowerings.convolution_channels_last import FEW, is_channels_last
from jitney.loops.lowerings.convolution_filter_gradient import NARROW, filter_gradient
from jitney.loops.lowerings.convolution_image_gradient import image_gradient
from jitney.loops.lowerings.convolution_transformed import worth_transforming
from jitney.loops.lowerings.convolution_transformed_gradient import transformed_filter_gradient
from jitney.loops.lowerings.expressions import cast
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window, spread

aten = torch.ops.aten


@lowers(aten.convolution_backward.default)
def convolution_backward(
    b: Builder,
    grad: StridedTensor,
    x: StridedTensor,
    weight: StridedTensor,
    bias_sizes: Sequence[Index] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[StridedTensor | None, ...]:
    """Gradients of x [n, c, h, w], weight [out channels, c / groups, h, w] and bias, as wanted."""
    _check(b, grad, x, weight, transposed, groups)
    steps, borders, gaps = (spread(values, 2) for values in (stride, padding, dilation))
    size, places = (tuple(map(int, like.shape[2:])) for like in (weight, grad))
    window = Window(size, steps, borders, gaps, places)
    image, filters, shift = (
        b.allocate(fake) if is_wanted else None
        for fake, is_wanted in zip(b.fake, wanted, strict=True)
    )
    rows = _dense(b, grad)
    whole = Convolution(rows, x, weight, None, window, groups)
    if image is not None:
        image_gradient(b, replace(whole, x=image))
    if filters is not None:
        _filter_gradient(b, replace(whole, weight=filters))
    if shift is not None:
        _sum_over_places(b, shift, rows)
    return image, filters, shift


def _filter_gradient(b: Builder, whole: Convolution) -> None:
    """Transformed where that pays, as the convolution itself."""
    last = is_channels_last(whole.x)
    plain = whole.groups > 1 or whole.depth < NARROW or whole.x.dtype != torch.float32
    if last and b.rerunnable and not plain and worth_transforming(whole, once=False):
        transformed_filter_gradient(b, whole)
    else:
        filter_gradient(b, whole)


def _check(
    b: Builder,
    grad: StridedTensor,
    x: StridedTensor,
    weight: StridedTensor,
    transposed: bool,
    groups: int,
) -> None:
    if b.target.kind == "cuda":
        raise Refused("cuDNN's gradients are faster")
    if transposed or x.ndim != 4 or x.dtype not in (torch.float32, torch.float64):
        raise Refused("gradients of a convolution that is transposed, not 2-d or not of floats")
    if not all(size.is_const and size.const for size in (*grad.shape, *x.shape, *weight.shape)):
        raise Refused("gradients of a convolution with symbolic sizes, or of nothing")
    if groups > 1 and int(weight.shape[1]) < FEW:
        raise Refused("gradients of a convolution with few channels a group")


def _dense(b: Builder, x: StridedTensor) -> StridedTensor:
    """x as channels-last."""
    if is_channels_last(x):
        return x
    n, c, h, w = x.shape
    return b.copy(b.allocate_as((n, h, w, c), x.dtype).permute((0, 3, 1, 2)), x)


def _sum_over_places(b: Builder, out: StridedTensor, grad: StridedTensor) -> None:
    def terms(position: Position, dtype: torch.dtype) -> tuple[Expr, ...]:
        return (cast(grad.load(position), dtype),)

    over = channels(b, grad, out)
    body, (total,) = sums_by_channel(b, grad, out, terms)
    b.emit(over.kept, (*body, store(out, over.result, total)))
