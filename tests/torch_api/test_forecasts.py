"""Results whose layout or shape torch foretells wrongly in some version."""

from __future__ import annotations

import pytest
import torch

import jitney
from tests.equal import assert_equal_to_eager


@pytest.mark.parametrize("name", ["fft", "rfft", "ihfft"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strides_of_transforms_are_eagers(name: str, dim: int) -> None:
    def transform(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.fft, name)(x, dim=dim)

    assert_equal_to_eager(transform, jitney.compile(transform), (torch.randn(5, 6, 7),))


def test_an_index_that_repeats() -> None:
    def fill(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, index, value) * 2

    inputs = torch.randn(5, 5), torch.tensor([3, 1, 3]), torch.tensor(2.0, requires_grad=True)
    assert_equal_to_eager(fill, jitney.compile(fill), inputs, training=True)
