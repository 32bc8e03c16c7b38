"""Inlined functions against float64, in units in the last place, and at special values."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.llvm.compiled import HOST, avx2_target, compile_function

TARGETS = {"host": HOST, "avx2": avx2_target()}
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, -1e-40,
           1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72283, 88.8, -87.4, -103.0, -103.97,
           -104.1, 0.5, 1e-8, -1e-8]  # fmt: skip
BOUNDS = {
    "exp": (-105, 90, 2),
    "expm1": (-20, 88, 3),
    "log": (0, 1e30, 2),
    "tanh": (-10, 10, 5),
    "erf": (-5, 5, 5),
    "erfinv": (-1, 1, 5),
    "sigmoid": (-30, 30, 5),
    "sin": (-100, 100, 2),
    "cos": (-100, 100, 2),
    "sin far": (-1e6, 1e6, 2),
    "cos far": (-1e9, 1e9, 2),
}


def _points(low: float, high: float) -> torch.Tensor:
    torch.manual_seed(0)
    even = torch.linspace(low, high, 40001)
    near = torch.randn(20000) * 0.3 + (1.0 if low == 0 else 0.0)
    wide = torch.exp(torch.rand(20000) * 80 - 60).clamp(max=abs(high))
    return torch.cat([even, near.clamp(low, high), wide])


def _ulps(value: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Error in units in the last place of the exact result, denormals included."""
    size = exact.abs().clamp(min=2.0**-126).log2().floor()
    return ((value.double() - exact).abs() / torch.exp2(size - 23)).nan_to_num(0.0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BOUNDS)
def test_error(name: str, target: str) -> None:
    low, high, bound = BOUNDS[name]
    function = getattr(torch, name.split()[0])
    x = _points(low, high)
    ours = compile_function(function, x, target=TARGETS[target])(x)[0]
    exact = function(x.double())
    finite = exact.abs() < 3.4e38
    assert ours[finite].isfinite().all()
    assert _ulps(ours, exact)[finite].max().item() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digamma(dtype: torch.dtype) -> None:
    """Beside its poles, at them, and on either side of 10, where the steps end."""
    near = torch.tensor([*range(-9, 13)], dtype=dtype)
    few = torch.finfo(dtype).eps * torch.tensor([0, 1, -1, 1e3, -1e3], dtype=dtype)
    x = torch.cat([near[:, None].mul(1 + few).flatten(), torch.linspace(-20, 30, 999, dtype=dtype)])
    x = torch.cat([x, torch.tensor([-0.0, math.inf, -math.inf, math.nan, 1e20, -1e5 - 0.5])])
    ours = compile_function(torch.digamma, x)(x)[0]
    exact = torch.digamma(x.double())
    rtol = 4 * torch.finfo(dtype).eps if dtype is torch.float32 else 1e-12
    settled = exact.abs() < (1e30 if dtype is torch.float32 else 1e6)  # eager's angle is rounded
    torch.testing.assert_close(ours[settled], exact[settled].to(dtype), rtol=rtol, atol=3 * rtol)
    special = torch.tensor(SPECIAL, dtype=dtype)
    ours = compile_function(torch.digamma, special)(special)[0]
    torch.testing.assert_close(ours, torch.digamma(special), equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [n for n in BOUNDS if " " not in n])
def test_special_values(name: str, target: str) -> None:
    function = getattr(torch, name)
    x = torch.tensor(SPECIAL)
    ours = compile_function(function, x, target=TARGETS[target])(x)[0]
    eager = function(x)
    torch.testing.assert_close(ours, eager, rtol=1e-6, atol=3e-45, equal_nan=True)
    assert torch.equal(ours.signbit() | ours.isnan(), eager.signbit() | eager.isnan())
