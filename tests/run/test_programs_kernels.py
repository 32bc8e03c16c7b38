"""Triton kernels of the program's own: those that are ops, and a launch, are calls in the graph
(`test_triton_launches` has more)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.run.test_triton_launches import add

triton = pytest.importorskip("triton")
tl = triton.language
pytestmark = pytest.mark.gpu
ROWS = 16


def test_an_op_made_of_a_kernel_is_a_call_in_the_graph() -> None:
    @torch.library.triton_op("test_programs_kernels::add", mutates_args={})
    def added(a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty_like(a)
        torch.library.wrap_triton(add)[(-(-a.numel() // ROWS),)](a, b, out, a.numel(), BLOCK=ROWS)
        return out

    added.register_autograd(lambda ctx, grad: (grad, grad))

    def program(x: Tensor, y: Tensor) -> Tensor:
        return added(x * 2, y.sin()).relu() + 1

    compiled = jitney.compile(program, fullgraph=True)
    for n in (20, 33, 47):
        found = []
        for called in (program, compiled):
            x, y = (torch.linspace(-1, 1, n, device="cuda").requires_grad_() for _ in range(2))
            result = called(x, y)
            result.sum().backward()
            found.append((result, x.grad, y.grad))
        torch.testing.assert_close(*found)


def test_an_op_made_of_a_kernel_that_writes() -> None:
    @torch.library.triton_op("test_programs_kernels::add_into", mutates_args={"out"})
    def add_into(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.library.wrap_triton(add)[(-(-a.numel() // ROWS),)](a, b, out, a.numel(), BLOCK=ROWS)

    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add_into(x * 2, y, out)
        add_into(out, y, y)
        return out.relu() + y

    compiled = jitney.compile(program)
    for n in (20, 33):
        found = []
        for called in (program, compiled):
            x, y = (torch.linspace(-1, 1, n, device="cuda") for _ in range(2))
            found.append((called(x, y), y))
        torch.testing.assert_close(*found)


def test_a_launch_is_a_call_in_the_graph() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        add[(-(-x.numel() // ROWS),)](x * 2, y, out, x.numel(), BLOCK=ROWS)
        return out.relu() * 3

    log.clear()
    x, y = (torch.linspace(-1, 1, 37, device="cuda") for _ in range(2))
    torch.testing.assert_close(jitney.compile(program)(x, y), program(x, y))
    assert not log.events("graph_break") and not log.events("eager_graph")
