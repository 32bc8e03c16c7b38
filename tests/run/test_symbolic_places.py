"""Indices that are symbols: their sign is known by a guard, or the op stays a library call."""

from __future__ import annotations

import torch

import jitney
from tests.equal import assert_equal_to_eager


def test_a_row_is_replaced_at_an_index_of_either_sign() -> None:
    def replaced(x: torch.Tensor, row: torch.Tensor, at: int) -> torch.Tensor:
        return torch.select_scatter(x, row, 1, at) * 2

    x, row = torch.randn(5, 5, 5).requires_grad_(), torch.randn(5, 5).requires_grad_()
    compiled = jitney.compile(replaced, options={"eager_on_bug": False})
    for at in (2, -1, -2, 3, 0, 4, -5):
        assert_equal_to_eager(replaced, compiled, (x, row, at), training=True, calls=1)


def test_a_view_that_begins_before_its_tensor_runs_eager() -> None:
    def begun_earlier(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2,), (1,), 0) * 2

    compiled = jitney.compile(begun_earlier, options={"eager_on_bug": False})
    memory = torch.arange(6.0)
    for start in (0, 2):
        assert torch.equal(compiled(memory[start:]), begun_earlier(memory[start:]))


def test_factors_of_an_integer_product_are_cut_to_its_dtype() -> None:
    def product(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addbmm(x, a, b, beta=2, alpha=3)

    inputs = tuple(torch.randint(0, 9, shape).int() for shape in ((2, 4), (3, 2, 5), (3, 5, 4)))
    assert_equal_to_eager(product, jitney.compile(product), inputs)
