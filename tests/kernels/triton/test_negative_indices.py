"""Quotients and remainders of indices that may be negative: Triton's own truncate, ours floor."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from jitney.loops import ir
from jitney.loops.index import Axis, Dim, FloorDiv, Mod, index
from jitney.loops.interpret import interpret
from tests.kernels.triton.interpreted import run_kernels

CPU, SIZE = torch.device("cpu"), 16
I, SHIFT = Axis("i", index(SIZE)), Dim("shift", low=-(1 << 62))


def buffer(name: str, kind: str, dtype: torch.dtype) -> ir.Buffer:
    return ir.Buffer(name, kind, dtype, CPU, (index(SIZE),), (index(1),))


def rolled() -> ir.LoopProgram:
    """x and, of each place, the quotient by 3, moved by ``shift``."""
    moved = index(I) - index(SHIFT)
    load = ir.Load("x", index(Mod(moved, index(SIZE))), torch.float32)
    quotient = ir.IndexValue(index(FloorDiv(moved, index(3))), torch.int64)
    stores = (ir.Store("out", index(I), load), ir.Store("third", index(I), quotient))
    named = {"x": "input", "out": "output", "third": "output"}
    buffers = tuple(
        buffer(n, kind, torch.int64 if n == "third" else torch.float32) for n, kind in named.items()
    )
    outputs = tuple(ir.Output(ir.BufferView(b.name, b.shape, b.strides)) for b in buffers[1:])
    return ir.LoopProgram((SHIFT, "x"), buffers, (ir.LoopNest("n", (I,), stores, ()),), outputs)


@pytest.mark.parametrize("shift", [0, 3, 16, 21, -5, -16, -40])
def test_a_symbolic_shift_may_go_either_way(shift: int) -> None:
    program, x = rolled(), torch.randn(SIZE)
    expected = x.roll(shift), (torch.arange(SIZE) - shift) // 3
    for got in (run_kernels(program, {}, (shift, x)), interpret(program, {}, (shift, x))):
        torch.testing.assert_close(tuple(got), expected)
