"""Cross-entropy over a large vocabulary: one pass forward, no dense one-hot backward."""

from __future__ import annotations

import pytest
import torch

from jitney.graph.expose_statistics import expose_statistics
from jitney.loops import ir, visit
from jitney.loops.fold_one_hot import fold_one_hot
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.lower_graph import lower_graph
from jitney.loops.online_softmax import online_softmax
from jitney.loops.simplify_nest import simplify_nests
from jitney.loops.verify import verify
from tests.loops.lowered import CPU, trace
from tests.targets import H200

CLASSES = 20000
aten = torch.ops.aten


def loss_and_gradient(x, target):
    """As autograd records it: the loss, and its gradient in x."""
    logp = aten._log_softmax(x.float(), 1, False)
    loss, total = aten.nll_loss_forward(logp, target, None, 1, -100)
    grad = aten.nll_loss_backward(torch.ones_like(loss), logp, target, None, 1, -100, total)
    return loss, aten._log_softmax_backward_data(grad, logp, 1, torch.float32).to(x.dtype)


def transformed(fn, *args, expose=True):
    gm = trace(fn, *args)
    if expose:
        for node in gm.graph.nodes:
            node.meta["backward"] = "backward" in str(node.target)
        expose_statistics(gm.graph)
        gm.graph.eliminate_dead_code()
    program, constants = lower_graph(gm, CPU)
    program = simplify_nests(fuse_nests(program, H200))
    program = online_softmax(fold_one_hot(program))
    verify(program)
    return program, constants


def inputs(rows=6, classes=CLASSES):
    torch.manual_seed(0)
    x = torch.randn(rows, classes).to(torch.bfloat16) * 4
    target = torch.randint(0, classes, (rows,))
    target[1] = -100
    return x, target


def test_values_are_eagers():
    x, target = inputs()
    program, constants = transformed(loss_and_gradient, x, target)
    leaf = x.float().requires_grad_()
    want = torch.nn.functional.cross_entropy(leaf, target)
    want.backward()
    loss, gradient = interpret(program, constants, [x, target])
    torch.testing.assert_close(loss, want.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.float(), leaf.grad, rtol=1e-2, atol=1e-6)


def test_rows_are_read_once_forward_and_once_backward():
    x = torch.empty(2000, CLASSES, dtype=torch.bfloat16)  # rows enough to fill a GPU
    program, _ = transformed(loss_and_gradient, x, torch.zeros(2000, dtype=torch.int64))
    wide = [
        (nest, stmt)
        for nest in program.nodes
        for stmt in visit.statements(nest.body)
        if isinstance(stmt, ir.Loop | ir.Reduce) and stmt.axes[-1].extent == index(CLASSES)
    ]
    kinds = [type(stmt) for _, stmt in wide]
    assert kinds == [ir.Reduce, ir.Loop]
    assert [r.op for r in wide[0][1].results] == ["softmax"]
    big = [b for b in program.buffers if b.kind == "temp" and len(b.shape) == 2]
    assert not [b for b in big if b.shape[1] == index(CLASSES)]


def test_short_rows_keep_two_reductions():
    program, _ = transformed(loss_and_gradient, *inputs(classes=100))
    ops = [
        result.op
        for nest in program.nodes
        for stmt in visit.statements(nest.body)
        if isinstance(stmt, ir.Reduce)
        for result in stmt.results
    ]
    assert "softmax" not in ops and "max" in ops


def test_layer_norm_by_its_statistics_is_the_layer_norm():
    def norm(x, w, b):
        out, mean, rstd = aten.native_layer_norm(x, [40], w, b, 1e-5)
        return out * 2, mean, rstd

    torch.manual_seed(0)
    arguments = (torch.randn(9, 40).bfloat16(), torch.randn(40), torch.randn(40))
    program, constants = transformed(norm, *arguments)
    for got, want in zip(
        interpret(program, constants, list(arguments)),
        norm(arguments[0].float(), *arguments[1:]),
        strict=True,
    ):
        torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("place", "classes", "dtype"),
    [*((place, 8, torch.int64) for place in (-1, 0, 4, 7, 8)), (127, 128, torch.int8)],
)
def test_one_hot_sums(place, classes, dtype):
    row, column = Axis("i", index(3)), Axis("r", index(classes))
    wanted = ir.Load("t", index(row), dtype)
    here = ir.Op("eq", (ir.IndexValue(index(column), dtype), wanted), torch.bool)
    value = ir.Load("v", index(row), torch.float32)
    picked = ir.Op("where", (here, value, ir.Const(0, torch.float32)), torch.float32)
    reduce = ir.Reduce((column,), (), (ir.Reduction(("s",), "sum", picked, torch.float32),))
    store = ir.Store("o", index(row), ir.Ref("s", torch.float32))
    cpu, shape, strides = torch.device("cpu"), (index(3),), (index(1),)
    kinds = (("t", "input", dtype), ("v", "input", torch.float32))
    buffers = [ir.Buffer(n, kind, dtype, cpu, shape, strides) for n, kind, dtype in kinds]
    buffers.append(ir.Buffer("o", "output", torch.float32, cpu, shape, strides))
    outputs = (ir.Output(ir.BufferView("o", shape, strides)),)
    nest = ir.LoopNest("n", (row,), (reduce, store))
    program = ir.LoopProgram(("t", "v"), tuple(buffers), (nest,), outputs)
    given = [torch.tensor([place, 2, place], dtype=dtype), torch.tensor([3.0, 4.0, float("inf")])]
    folded = fold_one_hot(program)
    verify(folded)
    assert not any(isinstance(s, ir.Reduce) for s in folded.nodes[0].body)
    torch.testing.assert_close(*interpret(program, {}, given), *interpret(folded, {}, given))
