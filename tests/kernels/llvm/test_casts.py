"""Doubles as integers: out of their range, and what is no number, as eager's kernels have it."""

from __future__ import annotations

import pytest
import torch

import jitney

VALUES = [3e9 + 7, 2.0**40 + 3, -3e9 - 7, 2e9 + 5, -(2.0**31) - 1, 2.0**32, 1e20, torch.nan]
VALUES += [torch.inf, -torch.inf, 2.0**63, 300.0, -1.0, 1.9, -0.9, 65536.5, 2.0**53]
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("count", [1, 5, 17, 64])
def test_doubles_as_integers(count: int) -> None:
    def cast(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 0).to(dtype) for dtype in INTEGERS]

    x = torch.tensor((VALUES * 4)[:count], dtype=torch.float64)
    assert all(map(torch.equal, jitney.compile(cast)(x), cast(x)))
