"""Folding a one-row norm into its products keeps their results."""

import torch

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
from jitney.loops.recompute_small_rows import recompute_small_rows
from jitney.loops.verify import verify

F32, CPU = torch.float32, torch.device("cpu")
K, N = 24, 10


def buffer(name, kind, *shape):
    strides = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * shape[d + 1]
    return Buffer(name, kind, F32, CPU, tuple(map(index, shape)), tuple(map(index, strides)))


def norm(overwrite=""):
    k, i = Axis("k", index(K)), Axis("i", index(K))
    x = Load("x", index(k), F32)
    scale = Op("rsqrt", (Op("add", (Ref("ss", F32), Const(1e-6, F32)), F32),), F32)
    scaled = Op("mul", (Load("x", index(i), F32), scale), F32)
    body = (
        Reduce((k,), (), (Reduction(("ss",), "sum", Op("mul", (x, x), F32), F32),)),
        Loop((i,), (Store("normed", index(i), scaled),)),
    )
    return LoopNest("norm", (), body)


def product(out, weight, then_write_x=False):
    n, k = Axis("n", index(N)), Axis("k", index(K))
    value = Op("mul", (Load("normed", index(k), F32), Load(weight, index(n) * K + k, F32)), F32)
    target = Store("x" if then_write_x else out, index(n), Ref(f"{out}_acc", F32))
    body = (Reduce((k,), (), (Reduction((f"{out}_acc",), "sum", value, F32),)), target)
    return LoopNest(f"to_{out}", (n,), body)


def program(*nodes, outputs):
    buffers = (
        buffer("x", "input", K),
        buffer("w", "input", N, K),
        buffer("v", "input", N, K),
        buffer("normed", "temp", K),
        buffer("o", "output", N),
        buffer("p", "output", N),
    )
    outs = tuple(Output(BufferView(o, (index(N),), (index(1),))) for o in outputs)
    return LoopProgram(("x", "w", "v"), buffers, nodes, outs)


def args():
    return [torch.randn(K), torch.randn(N, K), torch.randn(N, K)]


def test_two_products_take_the_norm_in():
    whole = program(norm(), product("o", "w"), product("p", "v"), outputs=("o", "p"))
    folded = recompute_small_rows(whole)
    verify(folded)
    assert [n.name for n in folded.nodes] == ["to_o", "to_p"]
    given = args()
    for want, got in zip(interpret(whole, {}, given), interpret(folded, {}, given), strict=True):
        torch.testing.assert_close(got, want)


def test_a_row_that_is_overwritten_between_stays():
    whole = program(norm(), product("o", "w", then_write_x=True), product("p", "v"), outputs=("p",))
    folded = recompute_small_rows(whole)
    assert [n.name for n in folded.nodes] == ["norm", "to_o", "to_p"]
    one, two = args(), None
    two = [a.clone() for a in one]
    (want,), (got,) = interpret(whole, {}, one), interpret(folded, {}, two)
    torch.testing.assert_close(got, want)


def test_a_product_that_reads_beside_the_row_waits_for_it():
    n, k = Axis("n", index(N)), Axis("k", index(K))
    inside = Op("ge", (IndexValue(index(k), torch.int64), Const(4, torch.int64)), torch.bool)
    padded = Load("normed", index(k) - 4, F32, inside, 7.0)
    value = Op("mul", (padded, Load("w", index(n) * K + k, F32)), F32)
    body = (
        Reduce((k,), (), (Reduction(("acc",), "sum", value, F32),)),
        Store("o", index(n), Ref("acc", F32)),
    )
    whole = program(norm(), LoopNest("to_o", (n,), body), outputs=("o",))
    kept = recompute_small_rows(whole)
    given = args()
    (want,), (got,) = interpret(whole, {}, given), interpret(kept, {}, given)
    torch.testing.assert_close(got, want)
