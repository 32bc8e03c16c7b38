"""Nests whose iterations meet in memory are refused, before they run and while they do."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from jitney.errors import CompilerBug
from jitney.loops import ir
from jitney.loops.index import Axis, Dim, Index, Value, index
from jitney.loops.interpret import interpret
from jitney.loops.verify import verify
from jitney.loops.verify_order import where_iterations_meet
from tests.loops.programs import lowered

I, J = Axis("i", index(4)), Axis("j", index(4))
F32 = torch.float32


def load(buffer: str, where: Index) -> ir.Load:
    return ir.Load(buffer, where, F32)


def program(*nodes: ir.Node, output: str = "y") -> ir.LoopProgram:
    """Nodes over input ``x`` and outputs ``t`` and ``y``, all of 16 floats; ``p`` holds 4 ints."""
    cpu = torch.device("cpu")
    floats = [("x", "input"), ("t", "output"), ("y", "output")]
    buffers = [ir.Buffer(n, kind, F32, cpu, (index(16),), (index(1),)) for n, kind in floats]
    buffers.append(ir.Buffer("p", "input", torch.int64, cpu, (index(4),), (index(1),)))
    view = ir.BufferView(output, (index(16),), (index(1),))
    return ir.LoopProgram(("x", "p"), tuple(buffers), nodes, (ir.Output(view),))


def run(checked: ir.LoopProgram) -> None:
    interpret(checked, {}, [torch.arange(16.0), torch.tensor([3, 1, 0, 2])])


def joined_too_far() -> ir.Node:
    """Iteration i of the loop over j and i reads what the loop's iteration j wrote."""
    fill = ir.Store("t", index(I), load("x", index(I)))
    inner = replace(J, name="k")
    copy = ir.Loop((inner,), (ir.Store("y", index(I) * 4 + inner, load("t", index(inner))),))
    return ir.LoopNest("n", (), (ir.Loop((I,), (fill, copy)),))


MEETING = {
    "a loop's later iteration is read": joined_too_far(),
    "points of a nest read each other's elements": ir.LoopNest(
        "n",
        (I, J),
        (
            ir.Store("t", index(I) * 4 + J, load("x", index(J))),
            ir.Store("y", index(I) * 4 + J, load("t", index(J) * 4 + I)),
        ),
    ),
    "what is read is overwritten by another point": ir.LoopNest(
        "n", (I,), (ir.Store("x", index(I), load("x", index(I) + 1)),)
    ),
    "every row writes what each reads": ir.LoopNest(
        "n",
        (I, J),
        (
            ir.Store("t", index(J), load("x", index(I))),
            ir.Store("y", index(I) * 4 + J, load("t", index(J))),
        ),
    ),
    "a reduction sums what its other iterations write": ir.LoopNest(
        "n",
        (),
        (
            ir.Reduce(
                (I,),
                (ir.Store("t", index(I), load("x", index(I))),),
                (ir.Reduction(("s",), "sum", load("t", Index((), 3) - I), F32),),
            ),
            ir.Store("y", index(0), ir.Ref("s", F32)),
        ),
    ),
    "two stores meet": ir.LoopNest(
        "n",
        (I,),
        (
            ir.Store("y", index(I), load("x", index(I))),
            ir.Store("y", index(I) + 1, load("x", index(I))),
        ),
    ),
}


@pytest.mark.parametrize("what", MEETING)
def test_iterations_that_meet_are_refused(what):
    with pytest.raises(CompilerBug, match="may meet"):
        verify(program(MEETING[what]))
    with pytest.raises(CompilerBug, match="iteration"):
        run(program(MEETING[what]))


def test_iterations_that_meet_by_positions_from_memory_are_seen_when_they_run():
    at = ir.Let("at", ir.Load("p", index(I), torch.int64))
    swap = ir.Store("x", index(I), load("x", index(Value("at"))))
    checked = program(ir.LoopNest("n", (I,), (at, swap)), output="x")
    verify(checked)
    with pytest.raises(CompilerBug, match="of the same loop writes"):
        run(checked)


def test_iterations_that_keep_apart_are_fine():
    """In one iteration, at elements of its own, and one loop after another."""
    before = ir.Loop((J,), (ir.Store("t", index(I) * 4 + J, load("x", index(J))),))
    after = ir.Loop((J,), (ir.Store("y", index(I) * 4 + J, load("t", index(I) * 4 + 3 - J)),))
    halves = tuple(ir.Store("x", index(I) + start, load("x", index(I) + start)) for start in (0, 4))
    two, four = Axis("two", index(2)), index(I) * 4
    parts = tuple(ir.Store("y", four + two + at, load("x", index(I))) for at in (0, 2))
    checked = program(
        ir.LoopNest("n", (I,), (before, after)),
        ir.LoopNest("m", (I,), halves),
        ir.LoopNest("parts of rows", (I, two), parts),
    )
    verify(checked)
    run(checked)


@pytest.mark.parametrize("first, refused", [(1, False), (2, True)])
def test_parts_of_rows_as_long_as_a_symbol_keep_apart(first, refused):
    """Every row has three parts; the first is written, from part ``first`` two are read."""
    size = index(Dim("s"))
    part, two = Axis("part", size), Axis("two", size * 2)
    row = index(I) * (size * 3)
    copy = ir.Loop((two,), (ir.Store("y", row + two, load("t", row + size * first + two)),))
    fill = ir.Loop((part,), (ir.Store("t", row + part, load("x", index(0))),))
    assert bool(where_iterations_meet(ir.LoopNest("n", (I,), (fill, copy)))) == refused


@pytest.mark.parametrize("times, rest, refused", [(1, 0, False), (3, 0, False), (1, -1, True)])
def test_rows_of_a_stack_as_long_as_a_symbol_keep_apart(times, rest, refused):
    """One nest writes two rows of what is stacked, the second ``times`` sizes behind the first."""
    size = index(Dim("s"))
    column = Axis("column", size)
    starts = (index(0), size * times + rest)
    rows = tuple(ir.Store("t", start + column, load("x", index(column))) for start in starts)
    assert bool(where_iterations_meet(ir.LoopNest("n", (column,), rows))) == refused


@pytest.mark.parametrize("refused", [False, True])
def test_rows_that_end_in_a_border_are_read_from_the_last_one(refused):
    """Each column of rows of ``s + 2`` is written, then read upwards: the same one, or another."""
    width = index(Dim("s")) + 2
    column = Axis("column", width)
    read_column = width - 1 - column if refused else index(column)
    read = load("t", (3 - index(J)) * width + read_column)
    write = ir.Loop((I,), (ir.Store("t", I * width + column, load("x", index(0))),))
    copy = ir.Loop((J,), (ir.Store("y", J * width + column, read),))
    assert bool(where_iterations_meet(ir.LoopNest("n", (column,), (write, copy)))) == refused


@pytest.mark.parametrize("start, refused", [("first", False), ("last", False), ("next", True)])
def test_a_column_of_a_square_keeps_to_its_square(start, refused):
    """Of each row's ``side * side`` places a loop writes all, another reads as many as a side."""
    side = index(Dim("s", low=8)) // 8
    square = side * side
    place, part = Axis("place", square), Axis("part", side)
    begin = {"first": index(0), "last": square - side, "next": square - 1}[start]
    write = ir.Loop((place,), (ir.Store("t", I * square + place, load("x", index(0))),))
    read = load("t", I * square + part + begin)
    copy = ir.Loop((part,), (ir.Store("y", I * side + part, read),))
    assert bool(where_iterations_meet(ir.LoopNest("n", (I,), (write, copy)))) == refused


@pytest.mark.parametrize("second, refused", [(1.0, False), (2.0, True)])
def test_stores_of_one_constant_may_meet(second, refused):
    """As the flags of a convolution's backward pass, set by both of the tensors it looks at."""
    loads = [load("x", where) for where in (index(I), index(I) + 4)]
    above = [ir.Op("lt", (value, ir.Const(3.0, F32)), torch.bool) for value in loads]
    flags = [
        ir.Store("y", index(0), ir.Const(value, F32), mask)
        for value, mask in zip((1.0, second), above)
    ]
    checked = program(ir.LoopNest("n", (I,), tuple(flags)))
    if refused:
        with pytest.raises(CompilerBug, match="may meet"):
            verify(checked)
    else:
        verify(checked)


@pytest.mark.parametrize("rows, refused", [(4, True), (1, False)])
def test_a_product_writes_its_operand_only_where_nobody_else_reads_it(rows, refused):
    product, _ = lowered(torch.mm, (torch.randn(rows, 4), torch.randn(4, 4)))
    (gemm,) = product.nodes
    assert isinstance(gemm, ir.Gemm)
    (store,) = gemm.epilogue
    assert isinstance(store, ir.Store)
    onto = replace(store, buffer=gemm.b.buffer, index=index(gemm.n))
    product = replace(product, nodes=(replace(gemm, epilogue=(store, onto)),))
    expected = pytest.raises(CompilerBug, match="may meet") if refused else nullcontext()
    with expected:
        verify(product)
