"""Inputs that begin inside other tensors, where kernels get a copy: what eager's own calls get."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitney
from tests.equal import assert_equal

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_draws_by_where_its_input_lies(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = F.dropout(x, 0.5)
        return kept, kept * 2 + x, y.add_(1)

    compiled = jitney.compile(function, dynamic=dynamic)
    for start in (0, 3, 1, 8, 0):
        results = []
        for call in (compiled, function):
            numbers = torch.arange(80, device="cuda").to(dtype)
            torch.manual_seed(0)
            results.append(call(numbers[start:][:12].view(3, 4), numbers[start + 40 :][:12]))
        assert_equal(*results)
