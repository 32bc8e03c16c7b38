"""Ops on lists of tensors, which optimizers call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_autograd_counts_their_writes(backend: str) -> None:
    def step(parameters: Any, gradients: Any) -> torch.Tensor:
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.5)
            torch._foreach_mul_(parameters, 0.5)
        return parameters[0] * 2

    compiled, w = jitney.compile(step, backend=backend), torch.nn.Parameter(torch.ones(3))
    for _ in range(2):
        loss = (w * w).sin().sum()
        before = w._version
        compiled([w], [torch.ones(3)])
        assert w._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
