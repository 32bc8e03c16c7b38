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


@pytest.mark.parametrize("name", ["fft", "rfft", "ihfftn"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strides_of_transforms_of_symbolic_sizes(name: str, dim: int) -> None:
    def transform(x: torch.Tensor) -> torch.Tensor:
        dims = {"dim": (dim,)} if name.endswith("n") else {"dim": dim}
        return getattr(torch.fft, name)(x, **dims)

    compiled = jitney.compile(transform, dynamic=True)
    for x in (torch.randn(5, 6, 7), torch.randn(3, 9, 4), torch.randn(4, 5, 6).transpose(0, 2)):
        assert_equal_to_eager(transform, compiled, (x,))


def test_an_index_that_repeats() -> None:
    def fill(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, index, value) * 2

    inputs = torch.randn(5, 5), torch.tensor([3, 1, 3]), torch.tensor(2.0, requires_grad=True)
    assert_equal_to_eager(fill, jitney.compile(fill), inputs, training=True)
