"""Elementary functions as polynomials on float32 vectors, inlined where they are used."""

from __future__ import annotations

from collections.abc import Callable

from jitney.kernels.llvm.ssa import Ssa
from jitney.kernels.llvm.text import FunctionText

POLYNOMIALS: dict[str, Callable[[FunctionText, Ssa], Ssa]] = {}
