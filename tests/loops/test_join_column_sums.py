"""Sums over rows join the nest that goes over the rows, and stay what they were."""

import pytest
import torch

from jitney.loops import join_column_sums
from jitney.loops.interpret import interpret
from jitney.loops.ir import LoopNest
from jitney.loops.target import Target
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
