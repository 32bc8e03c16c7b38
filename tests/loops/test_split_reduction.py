"""Splitting a reduction keeps its results."""

import pytest
import torch

from jitney.loops.index import Axis, Dim, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Const,
    Let,
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
from jitney.loops.points import place_among, points_of
from jitney.loops.simplify_nest import drop_single_axes
from jitney.loops.split_reduction import can_split, chunks_wanted, split_reduction
from jitney.loops.verify import verify
from tests.targets import H200

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


def test_a_sum_of_one_is_not_split():
    """A product whose inner size is one: dropping that axis leaves a reduction without any."""
    nest = drop_single_axes(reduction(1, 100, "sum").nodes[0])
    assert not any(s.axes for s in nest.body if isinstance(s, Reduce))
    assert chunks_wanted(nest, H200) == 0


@pytest.mark.parametrize("columns", [1, 16, 32, 63])
def test_few_columns_are_dealt_out_to_the_whole_gpu(columns):
    """A program takes some columns side by side, however few there are."""
    nest = reduction(1 << 20, columns, "sum").nodes[0]
    assert chunks_wanted(nest, H200) >= 2 * H200.multiprocessors


F32 = torch.float32


def columns_program(body, rows, columns, more=(), outs=("o",)):
    """A nest over ``columns`` of a [rows, columns] input, ``more`` vectors updated in place."""
    shape, strides = (index(rows), index(columns)), (index(columns), index(1))
    flat = ((index(columns),), (index(1),))
    buffers = [Buffer("a", "input", F32, CPU, shape, strides)]
    buffers += [Buffer(name, "input", F32, CPU, *flat) for name in more]
    for name in outs:
        layout = (shape, strides) if name == "rows" else flat
        buffers.append(Buffer(name, "output", F32, CPU, *layout))
    views = tuple(Output(BufferView(b.name, b.shape, b.strides)) for b in buffers[1:])
    nest = LoopNest("n", (Axis("j", index(columns)),), body)
    return LoopProgram(("a", *more), tuple(buffers), (nest,), views)


def op(name, *args):
    return Op(name, args, F32)


ROWS, COLUMNS = 4608, 24
J, R = Axis("j", index(COLUMNS)), Axis("r", index(ROWS))
X = Load("a", index(R) * COLUMNS + J, F32)
MOMENTS = {
    "welford": (Reduce((R,), (), (Reduction(("mean", "m2", "n"), "welford", X, F32),)),),
    "two sums": (
        Reduce((R,), (), (Reduction(("total",), "sum", X, F32),)),
        Let("mean", op("div", Ref("total", F32), Const(float(ROWS), F32))),
        Reduce(
            (R,),
            (),
            (Reduction(("m2",), "sum", op("square", op("sub", X, Ref("mean", F32))), F32),),
        ),
        Let("n", Const(float(ROWS), F32)),
    ),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_moments_far_from_zero_and_what_is_updated_in_place(kind):
    """As batch norm has it: mean and variance by column, a running mean that is read, written."""
    old = Load("running", index(J), F32)
    body = (
        Let("kept", op("mul", old, Const(0.5, F32))),
        *MOMENTS[kind],
        Store("mean_out", index(J), Ref("mean", F32)),
        Store("o", index(J), op("div", Ref("m2", F32), Ref("n", F32))),
        Store("running", index(J), op("add", Ref("kept", F32), Ref("mean", F32))),
    )
    program = columns_program(body, ROWS, COLUMNS, ("running",), ("mean_out", "o"))
    split = split_reduction(program, H200)
    verify(split)
    assert len(split.nodes) == (2 if kind == "welford" else 4)
    x, running = torch.randn(ROWS, COLUMNS) + 1000, torch.randn(COLUMNS)
    got = interpret(split, {}, [x, running.clone()])
    exact = x.double()
    want = running / 2 + x.mean(0), exact.mean(0).float(), exact.var(0, correction=0).float()
    for value, expected in zip(got, want, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)


def test_what_goes_over_the_row_again_becomes_a_nest():
    """A scale that no reduction enters is loaded by every nest that needs it."""
    total = Ref("total", F32)
    scaled = op("mul", X, Ref("scale", F32))
    again = Store("rows", index(R) * COLUMNS + J, op("sub", scaled, total))
    body = (
        Let("scale", Load("weight", index(J), F32)),
        Reduce((R,), (), (Reduction(("total",), "max", scaled, F32),)),
        Loop((R,), (again,)),
        Store("o", index(J), total),
    )
    program = columns_program(body, ROWS, COLUMNS, ("weight",), ("rows", "o"))
    split = split_reduction(program, H200)
    verify(split)
    assert [len(n.axes) for n in split.nodes] == [2, 1, 2, 1]
    x, weight = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)
    for got, want in zip(
        interpret(split, {}, [x, weight]), interpret(program, {}, [x, weight]), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_what_is_short_or_wide_or_does_not_combine_stays():
    assert len(split_reduction(reduction(64, 96, "sum"), H200).nodes) == 1
    assert len(split_reduction(reduction(256, 65536, "sum"), H200).nodes) == 1
    assert not can_split(reduction(70000, 1, "softmax").nodes[0])


def dtype_of(op):
    return torch.bool if op in ("any", "all") else torch.int64 if op == "xor" else torch.float32


def whole_and_split(op, rows, columns, sizes=()):
    """A reduction of rows by column, whole and split, run on numbers for each of ``sizes``."""
    dtype = dtype_of(op)
    j, r = Axis("j", index(columns)), tuple(Axis(f"r{n}", index(x)) for n, x in enumerate(rows))
    value = Load("a", place_among(r) * columns + j, dtype)
    result = torch.int64 if op.startswith("arg") else dtype
    names = ("total", "squares", "count") if op == "welford" else ("total",)
    body = [Reduce(r, (), (Reduction(names, op, value, result),))]
    body += [Store(f"o{n}", index(j), Ref(name, result)) for n, name in enumerate(names)]
    length = points_of(r)
    dims = list(length.atoms())
    buffers = [
        Buffer("a", "input", dtype, CPU, (length, index(columns)), (index(columns), index(1)))
    ]
    flat = ((index(columns),), (index(1),))
    buffers += [Buffer(f"o{n}", "output", result, CPU, *flat) for n in range(len(names))]
    outs = tuple(Output(BufferView(f"o{n}", *flat)) for n in range(len(names)))
    program = LoopProgram((*dims, "a"), tuple(buffers), (LoopNest("n", (j,), tuple(body)),), outs)
    split = split_reduction(program, H200)
    verify(split)
    assert len(split.nodes) > 1
    for given in sizes or [()]:
        there = dict(zip(dims, given, strict=True))
        count = int(length.substitute(there))
        x = torch.randn(count, columns).mul(3).round() if dtype.is_floating_point else None
        x = torch.randint(0, 9, (count, columns)) if x is None else x
        inputs = [*given, x.to(dtype)]
        yield interpret(program, {}, inputs), interpret(split, {}, inputs)


OPS = ("sum", "max", "min", "any", "all", "xor", "prod", "welford", "argmax", "argmin")


LENGTHS = [(70001, 1), (70000, 1), (4099, 20), (4096, 20), (70001, 3)]
SHORT_MOMENTS = ("welford", 4099, 20)  # are left to one program


@pytest.mark.parametrize(
    ("op", "rows", "columns"),
    [(op, *at) for op in OPS for at in LENGTHS if (op, *at) != SHORT_MOMENTS],
)
def test_lengths_without_divisors_are_padded(op, rows, columns):
    for whole, split in whole_and_split(op, (rows,), columns):
        torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("columns", [1, 20])
def test_symbolic_lengths_are_split(op, columns):
    n = Dim("n", low=1, hint=70001)
    for whole, split in whole_and_split(op, (n,), columns, [(70001,), (4096,), (1,), (2,), (513,)]):
        torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", ["sum", "max", "welford"])
def test_several_symbolic_axes_are_split(op):
    b, s = Dim("b", low=1, hint=13), Dim("s", low=1, hint=1009)
    sizes = [(13, 509), (1, 5), (40, 3), (2, 700)]
    for whole, split in whole_and_split(op, (b, s, 7), 2, sizes):
        torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", ["sum", "max", "welford"])
@pytest.mark.parametrize("batch", [64, 512])
def test_a_batch_of_a_fixed_size_uses_up_the_chunks(op, batch):
    """The rest of the row is a symbol, and so is how many elements a chunk has."""
    s = Dim("s", low=1, hint=1009)
    for whole, split in whole_and_split(op, (batch, s), 2, [(70,), (1,)]):
        torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-3)
