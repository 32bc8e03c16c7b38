"""`StridedTensor`: how lowering sees a tensor, so that views cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from jitney.loops.index import Index, IndexLike, index, is_empty
from jitney.loops.ir import Access, BufferView, Const, Expr, Load, Op, Scalar


@dataclass(frozen=True)
class StridedTensor:
    """Elements ``buffer[offset + sum(position * strides)]``; all counted in elements."""

    buffer: str
    dtype: torch.dtype
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index = Index()

    @property
    def ndim(self) -> int:
        """The number of dimensions; 0 of a scalar."""
        return len(self.shape)

    @property
    def numel(self) -> Index:
        """The number of elements."""
        total = index(1)
        for size in self.shape:
            total = total * size
        return total

    def at(self, position: Sequence[IndexLike]) -> Index:
        """The element index of a position; a dimension of size one is at 0 (it broadcasts)."""
        total = self.offset
        for where, size, stride in zip(position, self.shape, self.strides, strict=True):
            if size != index(1):
                total = total + index(where) * stride
        return total

    def load(
        self, position: Sequence[IndexLike], mask: Expr | None = None, other: Scalar = 0
    ) -> Expr:
        """The element at a position, broadcast from the right where it has fewer dimensions.

        Nothing is read of an empty tensor, whose strides may be 0: what a loop that never runs
        would read at one place may be moved out of it."""
        if is_empty(self.shape):
            return Const(other, self.dtype)
        own = position[len(position) - self.ndim :]
        if mask is not None and isinstance(other, float) and repr(other) == "-0.0":
            # a load with 0.0 equals one with -0.0, and would be taken for it
            read = Load(self.buffer, self.at(own), self.dtype, mask)
            return Op("where", (mask, read, Const(other, self.dtype)), self.dtype)
        return Load(self.buffer, self.at(own), self.dtype, mask, other)

    def access(self, position: Sequence[IndexLike]) -> Access:
        """The element at a position as an operand of a template."""
        return Access(self.buffer, self.at(position), self.dtype)

    def as_view(self) -> BufferView:
        """The operand of an extern call that this tensor is."""
        return BufferView(self.buffer, self.shape, self.strides, self.offset)

    def expand(self, shape: Sequence[Index]) -> StridedTensor:
        """Broadcast to ``shape`` (stride 0 along dimensions of size one or missing).

        Other sizes are equal to those of ``shape``, though perhaps only by a guard: a sum of
        counts, and the size that was split into them.
        """
        pad = len(shape) - self.ndim
        strides = [index(0)] * pad
        for own, size, stride in zip(self.shape, shape[pad:], self.strides, strict=True):
            strides.append(index(0) if own == index(1) != size else stride)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def permute(self, order: Sequence[int]) -> StridedTensor:
        """Dimensions in the given order."""
        return replace(
            self,
            shape=tuple(self.shape[d] for d in order),
            strides=tuple(self.strides[d] for d in order),
        )

    def transpose(self) -> StridedTensor:
        """The last two dimensions exchanged."""
        order = list(range(self.ndim))
        order[-1], order[-2] = order[-2], order[-1]
        return self.permute(order)

    def narrow(self, dim: int, start: IndexLike, size: IndexLike) -> StridedTensor:
        """Elements ``start … start + size`` along ``dim``."""
        shape = list(self.shape)
        shape[dim] = index(size)
        offset = self.offset + index(start) * self.strides[dim]
        return replace(self, shape=tuple(shape), offset=offset)

    def stepped(self, dim: int, start: int, size: int, step: int) -> StridedTensor:
        """``size`` elements along ``dim``: ``start``, ``start + step``, …"""
        moved = self.narrow(dim, start, size)
        strides = list(self.strides)
        strides[dim] = strides[dim] * step
        return replace(moved, strides=tuple(strides))

    def select(self, dim: int, at: IndexLike) -> StridedTensor:
        """The slice at one position of ``dim``, which goes away."""
        keep = [d for d in range(self.ndim) if d != dim % self.ndim]
        return replace(self.permute(keep), offset=self.offset + index(at) * self.strides[dim])

    def unsqueeze(self, dim: int) -> StridedTensor:
        """A dimension of size one before ``dim`` (0 … ndim)."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, index(1))
        strides.insert(dim, index(0))
        return replace(self, shape=tuple(shape), strides=tuple(strides))
