"""The gradient of a convolution's image: again a convolution, with the filter reversed.

With a stride above one there is one convolution for each remainder of an image's place by the
stride, of the result's gradient with those elements of the window that reach such places.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from jitney.loops.index import floor_div, index, modulo
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.convolution_channels_last import channels_last, is_channels_last
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window


def image_gradient(b: Builder, whole: Convolution) -> None:
    """Fills the image ``x`` of a convolution with its gradient; ``out`` holds that of the result,
    channels-last."""
    out, window = whole.x, whole.window
    n, c, h, w = out.shape
    target = out
    if not is_channels_last(out):
        target = b.allocate_as((n, h, w, c), out.dtype).permute((0, 3, 1, 2))
    filters = _turned(b, whole.weight, whole.groups)
    sizes = (int(h), int(w))
    phases = (_phases(window, d, sizes[d]) for d in range(2))
    for down, across in itertools.product(*phases):
        piece, part = target, filters
        for d, phase in ((2, down), (3, across)):
            piece = piece.stepped(d, phase.remainder, phase.places, window.stride[d - 2])
            part = part.stepped(d, phase.last, phase.count, -phase.step)
        if not down.count or not across.count:
            b.fill(piece, 0)
            continue
        both = (down, across)
        moved = Window(
            tuple(phase.count for phase in both),
            (1, 1),
            tuple(phase.padding for phase in both),
            tuple(phase.dilation for phase in both),
            tuple(phase.places for phase in both),
        )
        channels_last(b, Convolution(piece, whole.out, part, None, moved, whole.groups))
    if target is not out:
        b.copy(out, target)


def _turned(b: Builder, weight: StridedTensor, groups: int) -> StridedTensor:
    """[out, c, h, w] as [c of all groups, out of a group, h, w], with c together in memory."""
    out, c, h, w = weight.shape
    each = floor_div(out, index(groups))
    if groups == 1 and h == w == index(1) and weight.strides[1] == index(1):
        return weight.permute((1, 0, 2, 3))
    turned = b.allocate_as((h, w, each, c * groups), weight.dtype).permute((3, 2, 0, 1))

    def value_at(position: Position) -> Expr:
        channel, filtered, *taps = position
        group = floor_div(channel, c)
        return weight.load((group * each + filtered, modulo(channel, c), *taps))

    return b.compute(turned, value_at)


@dataclass(frozen=True)
class _Phase:
    """Places of the image with one ``remainder`` by the stride, along one dimension: as many as
    ``places``; elements of the window that reach them (``count``; from ``last`` back by ``step``),
    and the window these are on the gradient."""

    remainder: int
    places: int
    last: int
    count: int
    step: int
    padding: int
    dilation: int


def _phases(window: Window, d: int, size: int) -> Iterator[_Phase]:
    """Place ``stride * y + remainder`` is reached by an element ``t`` of the window from result
    ``y + (remainder + padding - t * dilation) / stride``, where that is whole."""
    stride, padding, dilation = window.stride[d], window.padding[d], window.dilation[d]
    for remainder in range(min(stride, size)):
        places = -(-(size - remainder) // stride)
        start = remainder + padding
        taps = [t for t in range(window.size[d]) if (start - t * dilation) % stride == 0]
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        last = taps[-1] if taps else 0
        reach = (last * dilation - start) // stride
        apart = step * dilation // stride if len(taps) > 1 else 1
        yield _Phase(remainder, places, last, len(taps), step, reach, apart)
