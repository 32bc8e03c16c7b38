"""Products of heads that are split off by copies: they read through those and stay products."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.emit_node import emit_node
from jitney.loops import ir
from tests.kernels.triton.interpreted import H200, gpu_program
from tests.loops.lowered import externs


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as products of three-dimensional tensors, as DeBERTa has it."""

    def heads(x: torch.Tensor) -> torch.Tensor:
        split = x.view(x.shape[0], x.shape[1], 3, -1).permute(0, 2, 1, 3).contiguous()
        return split.view(-1, x.shape[1], split.shape[-1])

    scores = torch.bmm(heads(q), heads(k).transpose(1, 2) / 4)
    return torch.bmm(torch.softmax(scores, -1), heads(v))


def test_products_of_split_heads_stay_products() -> None:
    args = [torch.randn(2, 64, 3 * 32, dtype=torch.float16) for _ in range(3)]
    program, _ = gpu_program(attend, *args)
    assert not externs(program)
    products = [n for n in program.nodes if isinstance(n, ir.Gemm)]
    assert len(products) == 2
    for product in products:  # matrix units multiply
        assert "tl.dot" in emit_node(product, H200, frozenset()).body
