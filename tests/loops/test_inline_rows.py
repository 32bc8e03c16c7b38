"""What one GPU program computes once per row is not stored before."""

import torch

from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Load,
    Loop,
    LoopNest,
    LoopProgram,
    Op,
    Output,
    Reduce,
    Reduction,
    Ref,
    Store,
)
from jitney.loops.target import Target
from tests.targets import H200

F32 = torch.float32
CPU = Target("cpu", "test", cores=2)


def load(name, where):
    return Load(name, where, F32)


def two_pass_rows(rows, columns):
    """``out = s / sum(s)`` over rows of ``s``, itself the exponential of eight inputs' sum."""
    i, j, r = Axis("i", index(rows)), Axis("j", index(columns)), Axis("r", index(columns))
    total = load("a0", index(i) * columns + j)
    for number in range(1, 8):
        total = Op("add", (total, load(f"a{number}", index(i) * columns + j)), F32)
    place = index(i) * columns + r
    first = LoopNest("s", (i, j), (Store("s", index(i) * columns + j, Op("exp", (total,), F32)),))
    share = Op("div", (load("s", place), Ref("t", F32)), F32)
    body = (
        Reduce((r,), (), (Reduction(("t",), "sum", load("s", place), F32),)),
        Loop((r,), (Store("out", place, share),)),
    )
    shape, strides = (index(rows), index(columns)), (index(columns), index(1))
    kinds = {f"a{n}": "input" for n in range(8)} | {"s": "temp", "out": "output"}
    cpu = torch.device("cpu")
    buffers = tuple(Buffer(n, kind, F32, cpu, shape, strides) for n, kind in kinds.items())
    outs = (Output(BufferView("out", shape, strides)),)
    nest = LoopNest("n", (i,), body)
    return LoopProgram(tuple(list(kinds)[:8]), buffers, (first, nest), outs)


def test_a_row_in_registers_takes_its_producer_in():
    program = two_pass_rows(6, 40)
    wide = two_pass_rows(512, 768)
    assert len(fuse_nests(wide, H200).nodes) == 1
    inputs = [torch.randn(6, 40) for _ in range(8)]
    (want,) = interpret(program, {}, inputs)
    (got,) = interpret(fuse_nests(program, H200), {}, inputs)
    torch.testing.assert_close(got, want)


def test_a_row_too_long_for_a_program_does_not():
    assert len(fuse_nests(two_pass_rows(64, 32768), H200).nodes) == 2


def rows_and_their_elements(rows, columns):
    """A row's sum stored at each of its elements, and beside it the square of each element."""
    i, j, r = Axis("i", index(rows)), Axis("j", index(columns)), Axis("r", index(columns))
    place, along = index(i) * columns + j, index(i) * columns + r
    square = Op("mul", (load("a0", place), load("a0", place)), F32)
    points = LoopNest("squares", (i, j), (Store("o0", place, square),))
    body = (
        Reduce((r,), (), (Reduction(("t",), "sum", load("a0", along), F32),)),
        Loop((r,), (Store("o1", along, Ref("t", F32)),)),
    )
    shape, strides = (index(rows), index(columns)), (index(columns), index(1))
    cpu = torch.device("cpu")
    kinds = {"a0": "input", "o0": "output", "o1": "output"}
    buffers = tuple(Buffer(n, kind, F32, cpu, shape, strides) for n, kind in kinds.items())
    outs = tuple(Output(BufferView(n, shape, strides)) for n in ("o0", "o1"))
    nests = (points, LoopNest("sums", (i,), body))
    return LoopProgram(("a0",), buffers, nests, outs)


def test_rows_and_elements_of_one_input_are_read_once():
    assert len(fuse_nests(rows_and_their_elements(2048, 768), H200).nodes) == 1
    assert len(fuse_nests(rows_and_their_elements(2048, 20000), H200).nodes) == 2
    assert len(fuse_nests(rows_and_their_elements(2048, 768), CPU).nodes) == 2
    program = rows_and_their_elements(2048, 8)
    fused = fuse_nests(program, H200)
    assert len(fused.nodes) == 1
    x = [torch.randn(2048, 8)]
    for got, want in zip(interpret(fused, {}, x), interpret(program, {}, x), strict=True):
        torch.testing.assert_close(got, want)
