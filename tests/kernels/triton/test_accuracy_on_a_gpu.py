"""Functions of float32 are as near to a float64 run as eager's, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney

pytestmark = pytest.mark.gpu

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sinh": lambda x: torch.sinh(x / 4),
    "cosh": lambda x: torch.cosh(x / 4),
    "reciprocal": torch.reciprocal,
    "quotient": lambda x: x / (x + 300),
    "silu": F.silu,
    "softplus": F.softplus,
    "softmax": lambda x: x.view(-1, 512).softmax(-1),
    "cumsum": lambda x: x.view(-1, 64).cumsum(-1),
}


def largest_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """In units of the last place of float32, of normal numbers."""
    known = truth.abs() > torch.finfo(torch.float32).smallest_normal
    unit = 2.0 ** (truth[known].abs().log2().floor() - 23)
    return float(((got.double()[known] - truth[known]).abs() / unit).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_of_float32_are_eagers(name: str) -> None:
    fn = FUNCTIONS[name]
    x = torch.linspace(-80, 80, 1 << 16, device="cuda")
    compiled = jitney.compile(fn, options={"eager_on_bug": False})
    truth = fn(x.double())
    ours, eagers = (largest_error(call(x), truth) for call in (compiled, fn))
    assert ours <= 1.25 * eagers + 0.5


def test_the_difference_of_equal_products_is_zero() -> None:
    """As eager's, whose kernels round each: its root is no NaN."""

    def deviation(x: torch.Tensor) -> torch.Tensor:
        return ((x * x).mean(1) - x.mean(1) * x.mean(1)).sqrt()

    x = torch.randn(4096, 1, device="cuda") * 100
    compiled = jitney.compile(deviation, options={"eager_on_bug": False})
    assert torch.equal(compiled(x), deviation(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [2**31 + 9, (65539, 2**15)])
def test_reductions_of_more_than_2_to_31_elements(size: Any, dynamic: bool) -> None:
    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(),
            x.argmax(),
            x.amin(),
            (x == 3).any(),
            x[:1].expand(2**17, *x.shape[1:]).sum(),
        )

    x = torch.zeros(size, dtype=torch.int8, device="cuda")
    x.view(-1)[-3], x.view(-1)[1] = 5, -1
    compiled = jitney.compile(reduced, dynamic=dynamic, options={"eager_on_bug": False})
    for mine, right in zip(compiled(x), reduced(x), strict=True):
        assert torch.equal(mine, right)
