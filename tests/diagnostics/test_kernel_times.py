"""Every kernel of a program runs by itself and gets a figure."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from jitney.diagnostics import render
from jitney.diagnostics.explain import explain_step


def test_every_kernel_gets_a_time_and_its_speeds() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(x @ w)[i], -1).sort()[0]

    given = torch.randn(8, 16), torch.randn(16, 32), torch.tensor([0, 3, 7])
    made = explain_step(f, lambda fn: fn(*given), times=True)
    assert made.kernels
    assert all(k.seconds > 0 for k in made.kernels)
    assert {"gemm", "loop", "extern"} <= {k.kind for k in made.kernels}
    assert "GFLOP/s" in render.as_text(made)


def test_symbolic_sizes_take_the_size_they_were_traced_with() -> None:
    made = explain_step(lambda x: x.sin().sum(0), lambda fn: fn(torch.ones(5, 7)), times=True,
                        dynamic=True)  # fmt: skip
    assert all(k.seconds > 0 for k in made.kernels)
