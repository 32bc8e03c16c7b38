"""Products of matrices in every layout, few rows and many, whole vectors and not."""

from __future__ import annotations

import pytest
import torch

import jitney
from tests.equal import assert_equal_to_eager


def laid_out(rows: int, columns: int, order: str, dtype: torch.dtype) -> torch.Tensor:
    """Row-major ("C"), column-major ("F"), or every second element of both axes ("S")."""
    if order == "F":
        return torch.randn(columns, rows).to(dtype).t()
    if order == "S":
        return torch.randn(2 * rows, 2 * columns).to(dtype)[::2, ::2]
    return torch.randn(rows, columns).to(dtype)


@pytest.mark.parametrize("left", "CFS")
@pytest.mark.parametrize("right", "CFS")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_pair_of_layouts(left: str, right: str, dtype: torch.dtype) -> None:
    for m, n, k in ((1, 5, 7), (5, 5, 5), (16, 16, 16), (3, 32, 40), (40, 33, 17)):
        jitney.reset()
        a, b = laid_out(m, k, left, dtype), laid_out(k, n, right, dtype)
        assert_equal_to_eager(torch.mm, jitney.compile(lambda a, b: torch.mm(a, b)), (a, b))
