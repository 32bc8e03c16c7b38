"""Python numbers that change from call to call, and constants: what a zero's sign and a zero do."""

from __future__ import annotations

import math

import pytest
import torch

import jitney


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_beta_that_becomes_zero_ignores_what_it_multiplies(dtype: torch.dtype) -> None:
    x = torch.arange(12.0).reshape(3, 2, 2).to(dtype)
    bias = torch.tensor([[1.0, math.nan], [math.inf, 2.0]], dtype=dtype)
    compiled = jitney.compile(lambda beta: torch.baddbmm(bias, x, x, beta=beta))
    for beta in (2, 3, 0):
        wanted = torch.baddbmm(bias, x, x, beta=beta)
        torch.testing.assert_close(compiled(beta), wanted, equal_nan=True)


def test_nan_becomes_a_negative_zero() -> None:
    x = torch.tensor([math.nan, 1.0])
    compiled = jitney.compile(lambda number: torch.nan_to_num(x, nan=number))
    for number in (0.5, 0.25, -0.0):
        assert compiled(number).signbit().tolist() == [math.copysign(1, number) < 0, False]
    fixed = jitney.compile(lambda: torch.nan_to_num(x, nan=-0.0))
    assert fixed().signbit().tolist() == [True, False]
