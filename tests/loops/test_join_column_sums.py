"""Sums over rows join the nest that goes over the rows, and stay what they were."""

import pytest
import torch

from jitney.loops import join_column_sums
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Const,
    Load,
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
from jitney.loops.verify import verify
from jitney.loops.visit import stores
from tests.kernels.triton.interpreted import gpu_program, run_kernels

ROWS = 2048
SMALL_GPU = Target("cuda", "a GPU", multiprocessors=8, capability=(9, 0))


def layer_norm_gradients(x, weight, grad, residual):
    mean, rstd = x.mean(1, keepdim=True), torch.rsqrt(x.var(1, correction=0, keepdim=True) + 1e-5)
    back = torch.ops.aten.native_layer_norm_backward(
        grad, x, [x.shape[1]], mean, rstd, weight, weight, [True, True, True]
    )
    made = (back[0] + residual).bfloat16()
    return made, back[1], back[2], made.sum(0)


def gelu_gradient(x, grad, weight):
    made = torch.ops.aten.gelu_backward((grad @ weight).view_as(x), x).view(-1, x.shape[-1])
    return made.t() @ grad, made.sum(0)


def joined(q, k, v, weight):
    made = torch.cat([q, k, v], 2).flatten(0, 1)
    return made @ weight, made.sum(0)


CASES = {
    "layer norm": (layer_norm_gradients, [(ROWS, 192), (192,), (ROWS, 192), (ROWS, 192)]),
    "gelu": (gelu_gradient, [(4, ROWS // 4, 256), (ROWS, 8), (8, 256)]),
    "cat": (joined, [*[(4, ROWS // 4, 128)] * 3, (384, 8)]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sum_joins_the_nest_that_makes_or_reads_its_rows(case, monkeypatch):
    monkeypatch.setattr(join_column_sums, "WORTH", 1 << 16)
    pytest.importorskip("triton")
    fn, shapes = CASES[case]
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in shapes]
    program, constants = gpu_program(fn, *args, target=SMALL_GPU)
    nests = [n for n in program.nodes if isinstance(n, LoopNest)]
    assert len([n for n in nests if any(s.mode == "sum" for s in stores(n.body))]) == 1
    want = fn(*args)
    for got in (
        interpret(program, constants, args),
        run_kernels(program, constants, args, SMALL_GPU),
    ):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())


F32, CPU = torch.float32, torch.device("cpu")
COLUMNS = 256


def nodes_in_turn(*names):
    """A program of a host that doubles ``a`` into ``o``, the sum of ``a``'s columns, a write into
    ``a``, a host that doubles it in place and a use of the sum, in the order asked for."""
    flat, column, row = (
        Axis(n, index(e)) for n, e in (("i", ROWS * COLUMNS), ("j", COLUMNS), ("r", ROWS))
    )
    rows = Load("a", index(row) * COLUMNS + column, F32)
    two = Const(2.0, F32)
    doubled = Op("mul", (Load("a", index(flat), F32), two), F32)
    nodes = {
        "host": LoopNest("host", (flat,), (Store("o", index(flat), doubled),)),
        "sum": LoopNest(
            "total",
            (column,),
            (
                Reduce((row,), (), (Reduction(("t",), "sum", rows, F32),)),
                Store("s", index(column), Ref("t", F32)),
            ),
        ),
        "in place": LoopNest("in_place", (flat,), (Store("a", index(flat), doubled),)),
        "write": LoopNest("write", (), (Store("a", index(3), two),)),
        "use": LoopNest(
            "use", (column,), (Store("u", index(column), Load("s", index(column), F32)),)
        ),
    }
    line = ((index(COLUMNS),), (index(1),))
    square = ((index(ROWS), index(COLUMNS)), (index(COLUMNS), index(1)))
    kinds = {
        "a": ("input", square),
        "o": ("output", square),
        "s": ("output", line),
        "u": ("output", line),
    }
    buffers = tuple(Buffer(n, kind, F32, CPU, *layout) for n, (kind, layout) in kinds.items())
    outputs = tuple(Output(BufferView(b.name, b.shape, b.strides)) for b in buffers)
    return LoopProgram(("a",), buffers, tuple(nodes[n] for n in names), outputs)


@pytest.mark.parametrize(
    "order,joins",
    [
        (("host", "sum", "use", "write"), True),
        (("sum", "host", "use", "write"), True),
        (("host", "write", "sum", "use"), False),
        (("sum", "write", "host", "use"), False),
        (("sum", "use", "host", "write"), False),
        (("host", "in place", "sum", "use"), False),
    ],
)
def test_a_sum_moves_only_where_it_sees_and_is_seen_as_before(order, joins, monkeypatch):
    monkeypatch.setattr(join_column_sums, "WORTH", 1 << 16)
    program = nodes_in_turn(*order)
    joined = join_column_sums.join_column_sums(program, SMALL_GPU)
    verify(joined)
    assert any(s.mode == "sum" for n in joined.nodes for s in stores(n.body)) == joins
    x = torch.randn(ROWS, COLUMNS)
    want, got = interpret(program, {}, [x.clone()]), interpret(joined, {}, [x.clone()])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-3)
