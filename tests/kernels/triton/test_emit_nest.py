"""Triton kernels of loop nests, run in Triton's interpreter against the reference interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.expressions import ROUNDING
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Const,
    IndexValue,
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
from tests.targets import H200

F32, I64 = torch.float32, torch.int64


def run(nest, tensors, out_dtypes, schedule=None):
    """Runs ``nest`` in Triton's interpreter; outputs (named o0, o1, …) are written in place."""
    source = emit_nest(nest, schedule or schedule_nest(nest, H200))
    text = source.text(interpret=True)
    kernel = load_function(text)
    grid = tuple(int(g) for g in source.grid) or (1,)
    kernel[grid](*[tensors[p.name] for p in source.parameters])


def reference(nest, inputs, outputs):
    buffers = [
        Buffer(
            n, kind, t.dtype, t.device, tuple(map(index, t.shape)), tuple(map(index, t.stride()))
        )
        for kind, table in (("input", inputs), ("output", outputs))
        for n, t in table.items()
    ]
    outs = tuple(
        Output(BufferView(b.name, b.shape, b.strides)) for b in buffers if b.kind == "output"
    )
    program = LoopProgram(tuple(inputs), tuple(buffers), (nest,), outs)
    return interpret(program, {}, list(inputs.values()))


def check(nest, inputs, outputs, schedule=None, tolerance=1e-5):
    expected = reference(nest, inputs, outputs)
    run(nest, {**inputs, **outputs}, None, schedule)
    for got, want in zip(outputs.values(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def axes(*sizes):
    return tuple(Axis(f"i{n}", index(s)) for n, s in enumerate(sizes))


@pytest.mark.parametrize("size", [1, 7, 1024, 3000])
@pytest.mark.parametrize("op", ["tanh", "exp", "sigmoid", "erf", "expm1", "log1p", "sin", "round"])
def test_pointwise(size, op):
    (i,) = axes(size)
    x = torch.randn(size) * 3
    x = x.abs() if op == "log1p" else x
    value = Op(op, (Load("a", index(i), F32),), F32)
    nest = LoopNest("n", (i,), (Store("o0", index(i), value),))
    check(nest, {"a": x}, {"o0": torch.full((size,), 7.0)})


@pytest.mark.parametrize("op", ["tanh", "expm1", "log1p", "sinh", "cosh", "sqrt", "sigmoid"])
def test_float64_is_exact_to_float64(op):
    (i,) = axes(64)
    value = Op(op, (Load("a", index(i), torch.float64),), torch.float64)
    nest = LoopNest("n", (i,), (Store("o0", index(i), value),))
    a = torch.linspace(0.01, 2, 64, dtype=torch.float64)
    check(nest, {"a": a}, {"o0": torch.zeros(64, dtype=torch.float64)}, tolerance=1e-13)


def test_quotients_are_rounded_as_eager_rounds_them():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([1.0, -1.0, 41.0, 6.0, -7.0, 7.0, 0.0, 0.0, 3.0, -3.0, inf, 5.0, nan, 0.3])
    b = torch.tensor([0.1, 0.1, 41.0, 3.0, 2.0, -2.0, -3.0, 0.0, 0.0, inf, 2.0, inf, 1.0, 0.1])
    (i,) = axes(len(a))
    pair = (Load("a", index(i), F32), Load("b", index(i), F32))
    floor, trunc = Op("floordiv", pair, F32), Op("trunc", (Op("div", pair, F32),), F32)
    nest = LoopNest("n", (i,), (Store("o0", index(i), floor), Store("o1", index(i), trunc)))
    outputs = {"o0": torch.zeros(len(a)), "o1": torch.zeros(len(a))}
    check(nest, {"a": a, "b": b}, outputs, tolerance=0)
    signs = torch.signbit(torch.div(a, b, rounding_mode="floor"))
    known = ~outputs["o0"].isnan()
    assert torch.equal(torch.signbit(outputs["o0"])[known], signs[known])
    assert "tl.div_rn(" in emit_nest(nest, schedule_nest(nest, H200)).body


def test_special_values_are_kept():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-38, 88.0, -88.0])
    (i,) = axes(8)
    for op in ("tanh", "sigmoid", "expm1", "log1p", "round", "trunc", "sinh", "cosh", "neg", "abs"):
        value = Op(op, (Load("a", index(i), F32),), F32)
        nest = LoopNest("n", (i,), (Store("o0", index(i), value),))
        outputs = {"o0": torch.full((8,), 7.0)}
        (want,) = reference(nest, {"a": x}, outputs)
        check(nest, {"a": x}, outputs)
        assert torch.equal(outputs["o0"].signbit()[3:5], want.signbit()[3:5]), op


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16])
def test_a_literal_keeps_the_sign_of_zero(dtype):
    (i,) = axes(4)
    a = torch.tensor([1.0, -1.0, 0.0, 2.0])
    positive = Op("gt", (Load("a", index(i), F32), Const(0.0, F32)), torch.bool)
    value = Op("where", (positive, Const(0.0, dtype), Const(-0.0, dtype)), dtype)
    masked = Load("a", index(i), F32, positive, -0.0)
    nest = LoopNest("n", (i,), (Store("o0", index(i), value), Store("o1", index(i), masked)))
    outputs = {"o0": torch.full((4,), 7.0, dtype=dtype), "o1": torch.full((4,), 7.0)}
    run(nest, {"a": a, **outputs}, None, None)
    assert not any(outputs["o0"])
    for out in outputs.values():
        assert out.signbit().tolist() == [False, True, True, False]


def test_one_plus_erf_of_sixteen_bits_is_one_function_without_cancellation():
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -9.0]
    x = torch.cat([torch.linspace(-6, 6, 2001), torch.tensor(special)])
    (i,) = axes(x.numel())
    erf = Op("erf", (Load("a", index(i), F32),), F32)
    for sum_ in ((Const(1.0, F32), erf), (erf, Const(1.0, F32))):
        value = Op("cast", (Op("add", sum_, F32),), torch.bfloat16)
        nest = LoopNest("n", (i,), (Store("o0", index(i), value),))
        assert "erf_plus_one" in emit_nest(nest, schedule_nest(nest, H200)).body
        out = torch.full(x.shape, 7.0, dtype=torch.bfloat16)
        run(nest, {"a": x, "o0": out}, None, None)
        want = torch.erfc(-x.double()).to(torch.bfloat16)
        torch.testing.assert_close(out, want, rtol=2**-7, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "expm1", "log1p", "reciprocal"])
def test_only_results_of_sixteen_bits_are_of_rough_functions(op: str):
    (i,) = axes(9)
    exact = Op(op, (Load("a", index(i), F32),), F32)
    short = Store("o0", index(i), Op("cast", (exact,), torch.bfloat16))
    bodies = []
    for stores in ((short,), (short, Store("o1", index(i), exact))):
        nest = LoopNest("n", (i,), stores)
        bodies.append(emit_nest(nest, schedule_nest(nest, H200)).body)
    assert [("lib." in b or "tl.div_rn(" in b) for b in bodies] == [False, True]


def test_gelu_of_sixteen_bits_is_one_function_with_eagers_special_values():
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, -3e38]
    x = torch.cat([torch.linspace(-8, 8, 3001), torch.tensor(special)])
    (i,) = axes(x.numel())
    a = Load("a", index(i), F32)
    scaled = Op("mul", (a, Const(0.5**0.5, F32)), F32)
    sum_ = Op("add", (Const(1.0, F32), Op("erf", (scaled,), F32)), F32)
    value = Op("mul", (Op("mul", (a, Const(0.5, F32)), F32), sum_), F32)
    nest = LoopNest("n", (i,), (Store("o0", index(i), Op("cast", (value,), torch.float16)),))
    assert "dm.gelu" in emit_nest(nest, schedule_nest(nest, H200)).body
    out = torch.full(x.shape, 7.0, dtype=torch.float16)
    run(nest, {"a": x, "o0": out}, None, None)
    want = torch.nn.functional.gelu(x.double())
    torch.testing.assert_close(out, want.half(), rtol=2e-3, atol=2e-7, equal_nan=True)


def test_broadcast_and_transpose():
    i, j = axes(40, 70)
    value = Op("add", (Load("a", index(j) * 40 + i, F32), Load("b", index(j), F32)), F32)
    nest = LoopNest("n", (i, j), (Store("o0", index(i) * 70 + j, value),))
    inputs = {"a": torch.randn(70, 40), "b": torch.randn(70)}
    assert schedule_nest(nest, H200).tile_axis == i
    check(nest, inputs, {"o0": torch.zeros(40, 70)})


def softmax_nest(rows, columns):
    i, j = axes(rows, columns)
    x = Load("a", index(i) * columns + j, F32)
    shifted = Op("exp", (Op("sub", (x, Ref("m", F32)), F32),), F32)
    body = (
        Reduce((j,), (), (Reduction(("m",), "max", x, F32),)),
        Reduce((j,), (), (Reduction(("s",), "sum", shifted, F32),)),
        Loop(
            (j,), (Store("o0", index(i) * columns + j, Op("div", (shifted, Ref("s", F32)), F32)),)
        ),
    )
    return LoopNest("softmax", (i,), body)


@pytest.mark.parametrize("columns", [1, 5, 64, 100])
def test_row_reduction_in_one_tile_and_in_a_loop(columns):
    nest = softmax_nest(9, columns)
    inputs = {"a": torch.randn(9, columns)}
    check(nest, inputs, {"o0": torch.zeros(9, columns)})
    check(nest, inputs, {"o0": torch.zeros(9, columns)}, Schedule(2, 16, 0, 1))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("schedule", [None, Schedule(4, 16, 0, 4)])
def test_reductions_keep_nan_and_first_positions(op, schedule):
    i, j = axes(6, 37)
    x = torch.randint(-3, 4, (6, 37)).float()
    x[2, 5] = float("nan")
    x[3] = 1.0
    dtype = torch.int64 if op.startswith("arg") else F32
    load = Load("a", index(i) * 37 + j, F32)
    body = (
        Reduce((j,), (), (Reduction(("r",), op, load, dtype),)),
        Store("o0", index(i), Ref("r", dtype)),
    )
    check(LoopNest("n", (i,), body), {"a": x}, {"o0": torch.zeros(6, dtype=dtype)}, schedule)


@pytest.mark.parametrize("schedule", [None, Schedule(4, 16, 0, 4)])
def test_welford(schedule):
    i, j = axes(6, 37)
    load = Load("a", index(i) * 37 + j, F32)
    body = (
        Reduce((j,), (), (Reduction(("mean", "m2", "n"), "welford", load, F32),)),
        Store("o0", index(i), Ref("mean", F32)),
        Store("o1", index(i), Op("div", (Ref("m2", F32), Ref("n", F32)), F32)),
    )
    x = torch.randn(6, 37) + 1000
    check(
        LoopNest("n", (i,), body),
        {"a": x},
        {"o0": torch.zeros(6), "o1": torch.zeros(6)},
        schedule,
        1e-4,
    )


@pytest.mark.parametrize("rows,columns", [(50, 90), (50, 128), (3000, 20), (3000, 64)])
def test_column_sum(rows, columns):
    j, i = axes(rows)[0], Axis("c", index(columns))
    load = Load("a", index(j) * columns + i, F32)
    body = (
        Reduce((j,), (), (Reduction(("r",), "sum", load, F32),)),
        Store("o0", index(i), Ref("r", F32)),
    )
    nest = LoopNest("n", (i,), body)
    assert (schedule_nest(nest, H200).row_limit == 0) == (rows > 50)
    inputs, outputs = {"a": torch.randn(rows, columns)}, {"o0": torch.zeros(columns)}
    check(nest, inputs, outputs, tolerance=1e-4)


def test_bf16_mask_and_constants():
    (i,) = axes(10)
    inside = Op("lt", (Load("b", index(i), torch.int64), Const(4, torch.int64)), torch.bool)
    load = Load("a", index(i), torch.bfloat16, inside, 2.0)
    value = Op("cast", (Op("exp", (Op("cast", (load,), F32),), F32),), torch.bfloat16)
    nest = LoopNest("n", (i,), (Store("o0", index(i), value),))
    inputs = {"a": torch.randn(10).bfloat16(), "b": torch.arange(10)}
    check(nest, inputs, {"o0": torch.zeros(10).bfloat16()}, tolerance=1e-2)


def test_a_reduction_inside_a_row_and_a_store_at_one_place():
    """A product fused behind its norm: what was one kernel has a loop inside a loop."""
    j, k, k2 = Axis("j", index(20)), Axis("k", index(12)), Axis("k2", index(12))
    square = Op("mul", (Load("x", index(k), F32), Load("x", index(k), F32)), F32)
    product = Op("mul", (Load("x", index(k2), F32), Load("w", index(j) * 12 + k2, F32)), F32)
    body = (
        Reduce((k,), (), (Reduction(("ss",), "sum", square, F32),)),
        Store("o1", index(0), Ref("ss", F32)),
        Loop(
            (j,),
            (
                Reduce((k2,), (), (Reduction(("acc",), "sum", product, F32),)),
                Store("o0", index(j), Op("div", (Ref("acc", F32), Ref("ss", F32)), F32)),
            ),
        ),
    )
    inputs = {"x": torch.randn(12), "w": torch.randn(20, 12)}
    nest = LoopNest("n", (), body)
    check(nest, inputs, {"o0": torch.zeros(20), "o1": torch.zeros(1)})
    check(nest, inputs, {"o0": torch.zeros(20), "o1": torch.zeros(1)}, Schedule(1, 8, 0, 1))


@pytest.mark.parametrize("columns", [64, 100, 333])
def test_softmax_in_one_pass(columns):
    i, j = axes(6, columns)
    x = Load("a", index(i) * columns + j, F32)
    both = Reduce((j,), (), (Reduction(("m", "s"), "softmax", x, F32),))
    stores = (Store("o0", index(i), Ref("m", F32)), Store("o1", index(i), Ref("s", F32)))
    nest = LoopNest("n", (i,), (both, *stores))
    a = torch.randn(6, columns) * 5
    a[1, 3], a[2, 5], a[3] = float("nan"), float("inf"), -float("inf")
    a[4, :50] = -float("inf")
    outputs = {"o0": torch.zeros(6), "o1": torch.zeros(6)}
    for schedule in (Schedule(1, 32, 0, 1), Schedule(2, 16, 0, 1)):
        check(nest, {"a": a}, outputs, schedule)


def test_a_row_is_not_read_back_after_it_is_stored():
    i, j = axes(6, 40)
    place = index(i) * 40 + j
    doubled = Op("mul", (Load("a", place, F32), Const(2.0, F32)), F32)
    sums = Reduce(
        (j,),
        (Store("o0", place, doubled),),
        (Reduction(("s",), "sum", Load("o0", place, F32), F32),),
    )
    share = Op("div", (Load("o0", place, F32), Ref("s", F32)), F32)
    nest = LoopNest("n", (i,), (sums, Loop((j,), (Store("o1", place, share),))))
    source = emit_nest(nest, schedule_nest(nest, H200))
    pointer = next(p.label for p in source.parameters if p.name == "o0")
    assert f"tl.load({pointer} " not in source.body
    outputs = {"o0": torch.zeros(6, 40), "o1": torch.zeros(6, 40)}
    check(nest, {"a": torch.rand(6, 40) + 1}, outputs)


def test_columns_of_a_layer_norm_lie_side_by_side():
    i, j = axes(768, 1024)
    centred = Op(
        "sub", (Load("x", index(i) + index(j) * 768, F32), Load("mean", index(j), F32)), F32
    )
    value = Op("mul", (centred, Load("rstd", index(j), F32)), F32)
    reduce = Reduce((j,), (), (Reduction(("s",), "sum", value, F32),))
    nest = LoopNest("n", (i,), (reduce, Store("o0", index(i), Ref("s", F32))))
    assert schedule_nest(nest, H200).x_block >= 8


def test_numbers_far_below_zero_need_wide_indices():
    (i,) = axes(4000)
    nest = LoopNest("n", (i,), (Store("o0", index(i), IndexValue(index(i) * -1000000, I64)),))
    check(nest, {}, {"o0": torch.zeros(4000, dtype=I64)})


def test_a_loop_inside_a_row_counts_in_wide_numbers_where_indices_do():
    j, k = axes(16, 5)
    far = Op("cast", (IndexValue(index(k) * 10**9 + j, I64),), torch.float64)
    summed = Reduce((k,), (), (Reduction(("s",), "sum", far, torch.float64),))
    nest = LoopNest("n", (), (Loop((j,), (summed, Store("o0", index(j), Ref("s", far.dtype)))),))
    check(nest, {}, {"o0": torch.zeros(16, dtype=torch.float64)})
    assert "tl.full([], 0, tl.int64) + i" in emit_nest(nest, schedule_nest(nest, H200)).body


def test_a_load_under_a_mask_is_repeated_after_a_store():
    i, j = axes(6, 32)
    inside = Op("lt", (IndexValue(index(j), I64), Const(3, I64)), torch.bool)
    known = Load("o0", index(i), F32, inside, 1.0)
    first, second = (Loop((j,), (Store(o, index(i) * 32 + j, known),)) for o in ("o1", "o2"))
    store = Store("o0", index(i), Load("a", index(i), F32))
    nest = LoopNest("n", (i,), (first, store, second))
    source = emit_nest(nest, schedule_nest(nest, H200))
    pointer = next(p.label for p in source.parameters if p.name == "o0")
    loads = [line for line in source.body.splitlines() if "tl.load(" in line]
    assert sum(f"({pointer} + " in line for line in loads) == 2


@pytest.mark.parametrize("op", ["round", "floor", "cast"])
def test_what_is_rounded_to_whole_numbers_is_not_fused_before(op):
    (i,) = axes(64)
    a, b = (Load(name, index(i), F32) for name in "ab")
    total = Op("add", (Op("mul", (a, b), F32), b), F32)
    dtype = I64 if op == "cast" else F32
    whole, plain = (
        LoopNest("n", (i,), (Store("o0", index(i), value),))
        for value in (Op(op, (total,), dtype), total)
    )
    texts = [emit_nest(nest, schedule_nest(nest, H200)).text() for nest in (whole, plain)]
    assert [any(word in text for word in ROUNDING) for text in texts] == [True, False]
    check(
        whole,
        {"a": torch.randn(64) * 9, "b": torch.randn(64)},
        {"o0": torch.zeros(64, dtype=dtype)},
    )


def test_what_a_loop_inside_a_row_reads_is_not_asked_for_ahead():
    i, j, k = axes(3, 4, 2)
    inner = Reduce(
        (k,), (), (Reduction(("t",), "sum", Load("b", index(j) * 2 + index(k), F32), F32),)
    )
    first = Loop((j,), (inner, Store("o0", index(i) * 4 + index(j), Ref("t", F32))))
    row = Reduce(
        (k,), (), (Reduction(("s",), "sum", Load("a", index(i) * 2 + index(k), F32), F32),)
    )
    nest = LoopNest("n", (i,), (first, row, Store("o1", index(i), Ref("s", F32))))
    outputs = {"o0": torch.zeros(3, 4), "o1": torch.zeros(3)}
    check(nest, {"a": torch.randn(3, 2), "b": torch.randn(4, 2)}, outputs)


def test_a_lone_row_fills_a_warp():
    k = Axis("k", index(10))
    total = Reduce((k,), (), (Reduction(("t",), "sum", Load("a", index(k), F32), F32),))
    nest = LoopNest("n", (), (total, Store("o0", index(0), Ref("t", F32))))
    assert "arange(0, 32)" in emit_nest(nest, schedule_nest(nest, H200)).text()
    check(nest, {"a": torch.randn(10)}, {"o0": torch.zeros(1)})


@pytest.mark.parametrize("stride", [0, 1])
def test_a_loop_of_more_than_2_to_31_points_counts_in_64_bits(stride):
    """Triton takes 2^31 + 9 for an unsigned number, of which a loop makes a negative one."""
    (r,) = axes(2**31 + 9)
    value = Load("a", index(r) * stride, F32)
    reduce = Reduce((r,), (), (Reduction(("s",), "sum", value, F32),))
    nest = LoopNest("n", (), (reduce, Store("o0", index(0), Ref("s", F32))))
    text = emit_nest(nest, schedule_nest(nest, H200)).text(interpret=False)
    assert "in range(0, tl.full([], 2147483657, tl.int64)" in text
    assert "tl.arange(0, 4096)[None, :].to(tl.int64)" in text
