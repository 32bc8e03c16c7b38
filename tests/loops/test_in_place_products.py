"""Results of templates that are written over what the template reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitney.loops.ir import Gemm, LoopNest
from tests.loops.programs import kernels, same_after_passes

OVER_AN_OPERAND: dict[str, Callable[[Any, Any], Any]] = {
    "left": lambda x, y: x.copy_(x @ y),
    "right": lambda x, y: y.sub_(x @ y),
    "residual": lambda x, y: x.add_(torch.relu(x @ y)),
    "epilogue": lambda x, y: x.copy_((y @ y) + x.t()),
    "rows": lambda x, y: x.copy_((y @ y) + x[torch.tensor([5, 0, 0, 1, 2, 3])]),
}


@pytest.mark.parametrize("name", OVER_AN_OPERAND)
def test_an_operand_is_not_overwritten_by_the_product_that_reads_it(name: str) -> None:
    program = same_after_passes(OVER_AN_OPERAND[name], [torch.randn(6, 6), torch.randn(6, 6)])
    assert isinstance(program.nodes[-1], LoopNest)


def test_a_residual_is_overwritten_in_the_epilogue() -> None:
    program = same_after_passes(
        lambda x, y, h: h.add_(x @ y), [torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)]
    )
    (product,) = program.nodes
    assert isinstance(product, Gemm)


def test_attention_over_its_query() -> None:
    def over(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q.copy_(F.scaled_dot_product_attention(q, k, k))

    program = same_after_passes(over, [torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)])
    assert kernels(program) == ["Attention", "LoopNest"]
