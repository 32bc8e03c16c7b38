"""Loads whose lanes lie a constant step apart, for targets without masked instructions.

There a gather is a load of each element, with a vector of 64-bit addresses to compute first. Here
one address serves all lanes, with constant offsets; steps of two and of minus one load whole
vectors.
"""

from __future__ import annotations

import torch

from jitney.kernels.llvm.conversions import shuffle
from jitney.kernels.llvm.ssa import Ssa, memory_type
from jitney.kernels.llvm.text import FunctionText


class StridedLoad:
    """``lanes`` elements of ``dtype`` from the address ``first`` on, each ``step`` elements (an
    i64 literal or name) after the one before; ``stays``: memory that the function writes.

    Nothing before the lowest or after the highest of the elements is read."""

    def __init__(
        self, text: FunctionText, first: str, dtype: torch.dtype, lanes: int, stays: bool
    ) -> None:
        self._text, self._first, self._lanes = text, first, lanes
        self._dtype = torch.uint8 if dtype == torch.bool else dtype
        self._read = text.emit if stays else text.read

    def by(self, step: str) -> Ssa:
        """Emits the load. Returns the vector."""
        if step == "-1":
            whole = self._vector(1 - self._lanes)
            return shuffle(self._text, whole, None, list(reversed(range(self._lanes))))
        if step == "2":
            return self._every_second()
        return self._one_by_one(step)

    def _at(self, offset: int | str) -> str:
        if offset == 0:
            return self._first
        kind = memory_type(self._dtype)
        return self._text.pure(f"getelementptr {kind}, ptr {self._first}, i64 {offset}", "p")

    def _vector(self, offset: int) -> Ssa:
        kind = memory_type(self._dtype, self._lanes)
        code = f"load {kind}, ptr {self._at(offset)}, align {self._dtype.itemsize}"
        return Ssa(self._read(code), self._dtype, self._lanes)

    def _every_second(self) -> Ssa:
        """Of two vectors that share an element: the second ends with the last one wanted."""
        lanes = self._lanes
        low, high = self._vector(0), self._vector(lanes - 1)
        inside = [2 * k for k in range(lanes // 2)]
        after = [2 * k + 1 for k in range(lanes // 2, lanes)]
        return shuffle(self._text, low, high, inside + after)

    def _one_by_one(self, step: str) -> Ssa:
        scalar, vector = memory_type(self._dtype), memory_type(self._dtype, self._lanes)
        name = "poison"
        for k in range(self._lanes):
            offset: int | str = k
            if step.lstrip("-").isdigit():
                offset = k * int(step)
            elif k:
                offset = self._text.pure(f"mul nsw i64 {step}, {k}")
            code = f"load {scalar}, ptr {self._at(offset)}, align {self._dtype.itemsize}"
            element = self._read(code)
            # The vector is put together where its elements are known: both may leave a loop.
            name = self._text.pure(f"insertelement {vector} {name}, {scalar} {element}, i64 {k}")
        return Ssa(name, self._dtype, self._lanes)
