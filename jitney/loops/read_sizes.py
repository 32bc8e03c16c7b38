"""Symbolic sizes and strides that a call reads off its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney.loops.index import Dim, bare_dim
from jitney.loops.ir import Buffer, LoopProgram, ScalarArg


@dataclass(frozen=True)
class ReadSize:
    """A symbol nobody hands over: the size of the argument at ``position`` along ``axis``, or, with
    ``is_stride``, its stride there."""

    dim: Dim
    position: int
    axis: int
    is_stride: bool = False

    def of(self, tensor: torch.Tensor) -> int:
        """Its value, of the argument at ``position``."""
        extents = tensor.stride() if self.is_stride else tensor.shape
        return extents[self.axis]


def symbols_of(buffer: Buffer, position: int = 0) -> tuple[ReadSize, ...]:
    """The symbols that are a size or a stride of ``buffer``, sizes first."""
    both = ((buffer.shape, False), (buffer.strides, True))
    return tuple(
        ReadSize(dim, position, axis, is_stride)
        for extents, is_stride in both
        for axis, extent in enumerate(extents)
        if (dim := bare_dim(extent)) is not None
    )


def sizes_to_read(
    program: LoopProgram, arguments: Sequence[str | Dim | ScalarArg]
) -> tuple[ReadSize, ...]:
    """Symbols of the tensors among ``arguments`` that are not arguments themselves."""
    table = program.buffer_table()
    known = {a for a in arguments if isinstance(a, Dim)}
    found: dict[Dim, ReadSize] = {}
    for position, argument in enumerate(arguments):
        if isinstance(argument, str):
            for symbol in symbols_of(table[argument], position):
                found.setdefault(symbol.dim, symbol)
    return tuple(symbol for symbol in found.values() if symbol.dim not in known)
