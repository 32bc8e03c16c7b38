"""``flex_attention`` on a GPU, with gradients, against a float64 run of what it means."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import jitney
from jitney.events import log

pytestmark = pytest.mark.gpu

ROWS, HEADS, LENGTH, WIDTH = 2, 4, 128, 64


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def blocks(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // 24 == k // 24) & (q != 30)  # row 30 is left without a key


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask_mod", [None, causal, blocks])
@pytest.mark.parametrize("has_table", [False, True])
def test_results_and_gradients(
    mask_mod: Any, has_table: bool, dtype: torch.dtype, mode: str | None
) -> None:
    torch.manual_seed(0)
    shape = ROWS, HEADS, LENGTH, WIDTH
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4)]
    table = torch.randn(HEADS, 2 * LENGTH, device="cuda")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> Any:
        def moved(score: Any, b: Any, h: Any, q_at: Any, k_at: Any) -> Any:
            return score + table[h, q_at - k_at + LENGTH]

        mask = None
        if mask_mod is not None:
            mask = flex.create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cuda")
        return flex.flex_attention(q, k, v, moved if has_table else None, mask)

    def meant(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> Any:
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH)
        place = torch.arange(LENGTH, device="cuda")
        rows, columns = place[:, None], place
        if has_table:
            scores = scores + table[:, rows - columns + LENGTH]
        if mask_mod is not None:
            scores = scores.masked_fill(~mask_mod(0, 0, rows, columns), -math.inf)
        return torch._safe_softmax(scores, -1) @ v

    def gradients(fn: Any, exact: bool) -> list[torch.Tensor]:
        kind = torch.float64 if exact else dtype
        *leaves, weight = [x.to(kind, copy=True) for x in inputs]
        leaves.append(table.double() if exact else table.clone())
        for leaf in leaves:
            leaf.requires_grad_()
        out = fn(*leaves)
        (out * weight).sum().backward()
        return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]

    log.clear()
    compiled = jitney.compile(attend, mode=mode, fullgraph=True)
    for _ in range(3):
        found = gradients(compiled, exact=False)
    assert not log.events("eager_graph")
    right = gradients(meant, exact=True)
    assert len(found) == len(right)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-3  # of the largest element
    for ours, exact in zip(found, right, strict=True):
        assert (ours.double() - exact).abs().max() <= tolerance * exact.abs().max()
