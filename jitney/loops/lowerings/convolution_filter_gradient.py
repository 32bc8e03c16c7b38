"""The gradient of a convolution's filter: products that sum over places.

Places are summed in chunks whose operands stay in a core's L2; the chunks' sums are added last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.loops.index import Axis, Index, floor_div, index, modulo
from jitney.loops.ir import Access, Gemm, Ref, Store
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.convolution_channels_last import bordered
from jitney.loops.lowerings.expressions import cast
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.lowerings.window import Convolution, Window, digits

#: Places a chunk has at most.
MOST_PLACES = 2048
#: Channels below which an image's channels are too few for lanes.
NARROW = 16
#: Rows of an image a chunk has at most where these are found through pointers.
MOST_ROWS = 32


@dataclass(frozen=True)
class _Operands:
    """The result's gradient ``grad`` and the image ``x`` by ``places`` of chunks, which are
    ``rows`` rows of ``samples`` images each. Both have their channels together in memory."""

    grad: StridedTensor
    x: StridedTensor
    window: Window
    groups: int
    samples: int
    rows: int

    @property
    def places(self) -> int:
        """Places a chunk has."""
        return self.samples * self.rows * self.window.out[1]

    @property
    def chunks(self) -> Axis:
        """The chunks' axis."""
        return Axis(
            "chunk", floor_div(self.grad.shape[0] * math.prod(self.window.out), index(self.places))
        )

    @property
    def chunk(self) -> Index:
        """The chunk's number."""
        return index(0) if self.chunks.extent == index(1) else index(self.chunks)

    def of_grad(self, k: Axis, channel: Index) -> Access:
        """The gradient at a chunk's ``k``-th place."""
        place = self.chunk * self.places + k
        return Access(
            self.grad.buffer,
            self.grad.offset + place * self.grad.shape[1] + channel,
            self.grad.dtype,
        )

    def of_image(self, k: Axis, channel: Index, taps: Sequence[Index]) -> Access:
        """The image where an element of the window lies for a chunk's ``k``-th place."""
        height, width = self.window.out
        sample, row, column = digits(index(k), tuple(map(index, (self.samples, self.rows, width))))
        pieces = index(height // self.rows)
        sample = floor_div(self.chunk, pieces) * self.samples + sample
        row = modulo(self.chunk, pieces) * self.rows + row
        return self.x.access((sample, channel, *self.window.source((row, column), taps)))


def filter_gradient(b: Builder, whole: Convolution) -> None:
    """Fills the ``weight`` of a convolution with its gradient: the sum over places of ``out``,
    which holds the result's gradient, channels-last, times the image where an element of the
    window lies."""
    if any(whole.window.padding) or whole.x.strides[1] != index(1):
        whole = bordered(b, whole)
    grad, out = whole.out, whole.weight
    narrow = int(out.shape[1]) < NARROW
    samples, rows = _chunk(int(grad.shape[0]), whole.window.out, narrow)
    operands = _Operands(grad, whole.x, whole.window, whole.groups, samples, rows)
    sums = (_narrow_sums if narrow else _sums)(b, out, operands)
    axes, position = b.axes(out.shape, strides=out.strides)
    summed = tuple(axis for axis in (operands.chunks,) if axis.extent != index(1))
    reduces, (total,) = b.reduce_all(summed, (("sum", sums.load((operands.chunk, *position))),))
    b.emit(axes, (*reduces, Store(out.buffer, out.at(position), cast(total, out.dtype))))


def _chunk(samples: int, place: tuple[int, ...], narrow: bool) -> tuple[int, int]:
    """Images, and rows of each, that a chunk has."""
    height, width = place
    most = max(1, MOST_PLACES // width)
    rows = _divisor(height, min(most, MOST_ROWS) if narrow else most)
    whole = rows == height and not narrow
    return _divisor(samples, most // height) if whole else 1, rows


def _divisor(size: int, most: int) -> int:
    return max(d for d in range(1, max(1, min(size, most)) + 1) if size % d == 0)


def _sums(b: Builder, out: StridedTensor, operands: _Operands) -> StridedTensor:
    """The chunks' sums, [chunk, out channel, c, h, w]: for each element of the window a product
    of the result's channels by the image's."""
    filters, depth, *size = out.shape
    chunks = operands.chunks
    made = b.allocate_as((chunks.extent, *size, filters, depth), out.dtype)
    sums = made.permute((0, 3, 4, 1, 2))
    axes, (group, *taps) = b.axes((index(operands.groups), *size), "b")
    each = floor_div(filters, index(operands.groups))
    m, n, k = Axis("m", each), Axis("n", depth), Axis("k", index(operands.places))
    channel = group * each + m
    _emit(
        b,
        (chunks, *axes),
        (m, n, k),
        (operands.of_grad(k, channel), operands.of_image(k, group * depth + n, taps)),
        Store(
            sums.buffer, sums.at((index(chunks), channel, index(n), *taps)), Ref("acc", out.dtype)
        ),
    )
    return sums


def _narrow_sums(b: Builder, out: StridedTensor, operands: _Operands) -> StridedTensor:
    """The same where the image's channels do not fill lanes: these, times the window's elements,
    are rows and the result's channels columns of one product."""
    filters, depth, *size = out.shape
    chunks = operands.chunks
    made = b.allocate_as((chunks.extent, *size, depth, filters), out.dtype)
    sums = made.permute((0, 4, 3, 1, 2))
    axes, (group,) = b.axes((index(operands.groups),), "b")
    each = floor_div(filters, index(operands.groups))
    m, n = Axis("m", math.prod(size, start=depth)), Axis("n", each)
    k = Axis("k", index(operands.places))
    *taps, channel = digits(index(m), (*size, depth))
    column = group * each + n
    _emit(
        b,
        (chunks, *axes),
        (m, n, k),
        (operands.of_image(k, group * depth + channel, taps), operands.of_grad(k, column)),
        Store(sums.buffer, sums.at((index(chunks), column, channel, *taps)), Ref("acc", out.dtype)),
    )
    return sums


def _emit(
    b: Builder,
    batch: tuple[Axis, ...],
    axes: tuple[Axis, Axis, Axis],
    operands: tuple[Access, Access],
    store: Store,
) -> None:
    batch = tuple(axis for axis in batch if axis.extent != index(1))
    name = b.fresh(f"{b.node.name}_gemm")
    origins = (b.node.name,)
    b.nodes.append(
        Gemm(name, batch, *axes, *operands, store.value.dtype, (store,), origins=origins)
    )
