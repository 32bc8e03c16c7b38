"""A module that is wrong by as much as it is told, for tests of the judges."""

from __future__ import annotations

from typing import Any

import torch


class Scaled(torch.nn.Module):
    """``inner`` with its result times ``result``, and ``gradient`` of its gradient on top."""

    def __init__(self, inner: Any, result: float, gradient: float) -> None:
        super().__init__()
        self.inner, self.result, self.gradient = inner, result, gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y * self.result + (y - y.detach()) * self.gradient
