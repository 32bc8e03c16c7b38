"""Long sums are as exact as torch's: the tile adds up blocks of steps."""

from __future__ import annotations

import torch

import jitney


def rms_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact).square().mean().sqrt())


def test_long_sums() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(64, 2048), torch.rand(2048, 64)  # of one sign: rounding adds up
    exact = a.double() @ b.double()
    ours = jitney.compile(lambda a, b: a @ b, fullgraph=True)(a, b)
    assert rms_error(ours, exact) < 2 * rms_error(a @ b, exact)


def test_convolutions_over_many_channels() -> None:
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(128, 64, 3, padding=1).requires_grad_(False)
    x = torch.rand(2, 128, 14, 14)
    exact = torch.nn.functional.conv2d(
        x.double(), convolution.weight.double(), convolution.bias.double(), padding=1
    )
    ours = jitney.compile(convolution, fullgraph=True)(x)
    assert rms_error(ours, exact) < 2 * rms_error(convolution(x), exact)
