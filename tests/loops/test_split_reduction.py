"""Splitting a reduction keeps its results."""

import pytest
import torch

from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Load,
    LoopNest,
    LoopProgram,
    Output,
    Reduce,
    Reduction,
    Ref,
    Store,
)
from jitney.loops.split_reduction import can_split, split_reduction
from jitney.loops.target import Target
from jitney.loops.verify import verify

H200 = Target("cuda", "NVIDIA H200", multiprocessors=132, capability=(9, 0))
CPU = torch.device("cpu")


def reduction(rows, columns, op):
    j, r = Axis("j", index(columns)), Axis("r", index(rows))
    value = Load("a", index(r) * columns + j, torch.float32)
    body = (
        Reduce((r,), (), (Reduction(("total",), op, value, torch.float32),)),
        Store("o", index(j), Ref("total", torch.float32)),
    )
    shape, strides = (index(rows), index(columns)), (index(columns), index(1))
    buffers = (
        Buffer("a", "input", torch.float32, CPU, shape, strides),
        Buffer("o", "output", torch.float32, CPU, (index(columns),), (index(1),)),
    )
    out = Output(BufferView("o", (index(columns),), (index(1),)))
    return LoopProgram(("a",), buffers, (LoopNest("n", (j,), body),), (out,))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("rows,columns", [(4096, 96), (70000, 1)])
def test_split_equals_whole(op, rows, columns):
    program = reduction(rows, columns, op)
    split = split_reduction(program, H200)
    verify(split)
    assert len(split.nodes) == 2
    x = torch.randn(rows, columns)
    (want,), (got,) = interpret(program, {}, [x]), interpret(split, {}, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3)


def test_what_is_short_wide_or_positional_stays():
    assert len(split_reduction(reduction(64, 96, "sum"), H200).nodes) == 1
    assert len(split_reduction(reduction(256, 65536, "sum"), H200).nodes) == 1
    assert not can_split(reduction(70000, 1, "argmax").nodes[0])
