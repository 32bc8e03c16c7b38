"""What lowerings of convolutions share: the window, the operands, positions as digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.loops.index import Index, floor_div, index, modulo
from jitney.loops.ir import Expr
from jitney.loops.lowerings.expressions import add, cast
from jitney.loops.lowerings.strided import StridedTensor


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

    def reach(self) -> list[int]:
        """How many places of the image, and of the border, lie between the first that is read and
        the last."""
        every = zip(self.size, self.stride, self.dilation, self.out, strict=True)
        return [(n - 1) * s + (k - 1) * d + 1 for k, s, d, n in every]

    def source(self, place: Sequence[Index], taps: Sequence[Index]) -> list[Index]:
        """Where in the image a place of the result reads an element of the window."""
        every = zip(place, taps, self.stride, self.dilation, self.padding, strict=True)
        return [at * s + t * d - p for at, t, s, d, p in every]

    def split(self, taps: Sequence[Index]) -> tuple[list[Index], list[Index]]:
        """Elements of the window as phases and offsets within them."""
        every = list(zip(taps, self.stride, self.dilation, strict=True))
        phases = [modulo(t * d, index(s)) for t, s, d in every]
        return phases, [floor_div(t * d, index(s)) for t, s, d in every]


@dataclass(frozen=True)
class Convolution:
    """One convolution: ``out`` [n, channels, place…] of ``x`` [n, c, image…] with ``weight``
    [channels, c / groups, window…] and ``bias`` [channels]."""

    out: StridedTensor
    x: StridedTensor
    weight: StridedTensor
    bias: StridedTensor | None
    window: Window
    groups: int

    @property
    def channels(self) -> int:
        """Output channels of a group."""
        return int(self.out.shape[1]) // self.groups

    @property
    def depth(self) -> int:
        """Input channels of a group."""
        return int(self.weight.shape[1])

    def with_bias(self, total: Expr, channel: Index) -> Expr:
        """``total + bias[channel]``, in the dtype of ``total``; it alone without a bias."""
        if self.bias is None:
            return total
        return add(total, cast(self.bias.load((channel,)), total.dtype))


def spread(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One value for every dimension where only one is given."""
    return tuple(values) * (rank if len(values) == 1 else 1)


def row_major(sizes: Sequence[int]) -> list[Index]:
    """Strides, in elements, of a row-major tensor of these sizes."""
    return [index(math.prod(sizes[d + 1 :])) for d in range(len(sizes))]


def digits(number: Index, sizes: Sequence[Index]) -> list[Index]:
    """``number`` as a row-major position in ``sizes``."""
    digits: list[Index] = []
    for size in reversed(sizes[1:]):
        digits.insert(0, modulo(number, size))
        number = floor_div(number, size)
    return [number, *digits]
