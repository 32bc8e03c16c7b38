"""The programs of `tests.fuzz.on_a_gpu` without a GPU: Triton's interpreter runs their kernels.

python -m tests.fuzz.on_a_pretended_gpu exact|shape|view|slice|gradient|code|state [--seed N]
    [--count N] [--seconds S]

A seed's program and its inputs are those it has on a GPU; eager and the library's calls are a
CPU's, and random numbers are drawn eager. Kernels assert that each value has its expression's
dtype. Needs Triton.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it as it is imported

import pytest

from jitney.kernels.triton.emit_tile import Depends, TileEmitter
from jitney.kernels.triton.expressions import TYPES
from jitney.loops.ir import Expr
from tests.fuzz.command_line import run_seeds
from tests.fuzz.on_a_gpu import KINDS
from tests.pretend_gpu import GpuLost, pretend_gpu


def check(kind: str, seed: int, length: int) -> int:
    """Compares the program of ``seed`` with eager. Gives how many programs were compiled for it."""
    with pytest.MonkeyPatch.context() as patched:
        pretend_gpu(patched)
        patched.setattr(TileEmitter, "_expr", _checked)
        try:
            return KINDS[kind](seed, length, "cpu")
        except GpuLost as lost:
            raise AssertionError(f"{lost}: {lost.__cause__}") from lost


def _checked(self: TileEmitter, expr: Expr) -> tuple[str, Depends]:
    """`TileEmitter._expr`, which Triton gives another dtype where it widens what it computes."""
    value, on = _EXPR(self, expr)
    check = f"assert {value}.dtype == {TYPES[expr.dtype]}, ({value}.dtype, {str(expr)[:80]!r})"
    if not any(check in known for known in self.memo):
        self.memo[-1][check] = value, on
        self._line(check)
    return value, on


_EXPR = TileEmitter._expr


if __name__ == "__main__":
    os.environ.setdefault("JITNEY_EAGER_ON_BUG", "0")
    kind = sys.argv.pop(1)
    run_seeds(lambda seed, length: check(kind, seed, length), __doc__, length=6)
