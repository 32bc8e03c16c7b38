"""A backward graph that is traced in `backward()` is traced under the modes of its forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from jitney.graph.ambient import Ambient


class Looking(torch.autograd.Function):
    """Its backward says where a new tensor lies, before, inside and after the restored modes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ambient: Ambient, seen: list[str]) -> torch.Tensor:
        ctx.ambient, ctx.seen = ambient, seen
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.seen.append(torch.zeros(1).device.type)
        with ctx.ambient.restored():
            ctx.seen.append(torch.zeros(1).device.type)
        ctx.seen.append(torch.zeros(1).device.type)
        return gradient, None, None


def test_the_default_device_is_the_forwards() -> None:
    x = torch.ones(3, requires_grad=True)
    for kind in ("meta", "cpu"):
        seen: list[str] = []
        with torch.device(kind):
            Looking.apply(x, Ambient.now(), seen).sum().backward()
        assert seen == ["cpu", kind, "cpu"]


@pytest.mark.gpu
@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_some_results_under_a_default_gpu(again: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        y = (x + torch.ones(3)).exp()
        return y, y * torch.full((3,), 2.0)

    with torch.device("cuda"):
        compiled, x = jitney.compile(f), torch.zeros(3, requires_grad=True)
        for wanted in (0, 1):
            pair = [run(x)[wanted].sum() for run in (compiled, f)]
            got, want = (torch.autograd.grad(y, x, create_graph=again)[0] for y in pair)
            torch.testing.assert_close(got, want)
