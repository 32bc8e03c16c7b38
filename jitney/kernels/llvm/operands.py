"""How a node's function reaches its buffers, sizes and scalar arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from jitney.errors import CompilerBug
from jitney.kernels.llvm.conversions import cast
from jitney.kernels.llvm.ssa import Ssa
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Dim
from jitney.loops.ir import ScalarArg


class Operands:
    """The tables a function was handed, by name.

    ``buffers`` and ``scalars`` in table order; ``written`` names the buffers the function stores
    to (their loads keep their place). `add_local` makes a piece of scratch look like a buffer.
    """

    def __init__(
        self,
        text: FunctionText,
        buffers: Sequence[str],
        scalars: Sequence[Dim | ScalarArg] = (),
        written: Iterable[str] = (),
    ) -> None:
        self.text = text
        self.written = set(written)
        self._positions = {name: k for k, name in enumerate(buffers)}
        self._scalars = {_scalar_key(s): k for k, s in enumerate(scalars)}
        self._local: dict[str, str] = {}

    def add_local(self, name: str, pointer: str) -> None:
        """Loads and stores of ``name`` go to ``pointer``."""
        self._local[name] = pointer
        self.written.add(name)

    def pointer(self, buffer: str) -> str:
        """The SSA name of the buffer's data pointer."""
        if buffer in self._local:
            return self._local[buffer]
        if buffer not in self._positions:
            raise CompilerBug(f"buffer {buffer} is not in the function's table")
        slot = self.text.pure(
            f"getelementptr ptr, ptr %buffers, i64 {self._positions[buffer]}", "slot"
        )
        return self.text.pure(f"load ptr, ptr {slot}", "base")

    def dim(self, dim: Dim) -> str:
        """A symbolic size as an i64."""
        return self.text.pure(f"load i64, ptr {self._slot(dim)}", "dim")

    def scalar(self, argument: ScalarArg) -> Ssa:
        """A runtime scalar in its dtype."""
        slot = self._slot(argument)
        wide = torch.float64 if argument.dtype.is_floating_point else torch.int64
        kind = "double" if wide == torch.float64 else "i64"
        value = Ssa(self.text.pure(f"load {kind}, ptr {slot}", "arg"), wide)
        return cast(self.text, value, argument.dtype)

    def _slot(self, scalar: Dim | ScalarArg) -> str:
        key = _scalar_key(scalar)
        if key not in self._scalars:
            raise CompilerBug(f"scalar {scalar} is not in the function's table")
        return self.text.pure(f"getelementptr i64, ptr %scalars, i64 {self._scalars[key]}", "slot")


def _scalar_key(scalar: Dim | ScalarArg) -> tuple[str, str]:
    return (type(scalar).__name__, scalar.name)
