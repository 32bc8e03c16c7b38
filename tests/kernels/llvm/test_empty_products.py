"""Products whose sizes are numbers that may be 0 (the tokens of an expert), forward and
backward: rows, columns, terms and batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager

Product = Callable[..., torch.Tensor]


def chosen(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.split([count, 30 - count])[0]


def rows(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return chosen(x, count) @ w + 1


def linear(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return F.relu(F.linear(chosen(x, count), w.t(), w[0]))


def columns(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return w.t() @ chosen(x, count).t()


def terms(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return chosen(x, count).t() @ chosen(x, count) + w


def few_rows_of_terms(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return chosen(x, count).t()[:3] @ chosen(x, count) + w[:3]


def one_row_of_terms(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return chosen(x, count).t() @ chosen(x, count)[:, 0] + w[0]


def one_product(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return torch.dot(chosen(x, count)[:, 0], chosen(x, count)[:, 1]) + w.sum()


def batch(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    few = chosen(x, count)
    return torch.bmm(few.unsqueeze(1).expand(-1, 5, -1), few.unsqueeze(2) * w[0])


def added(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return torch.addmm(w, chosen(x, count).t(), chosen(x, count), beta=2, alpha=3)


def attention(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    queries = (chosen(x, count) @ w).unflatten(1, (2, -1)).transpose(0, 1)[None]
    keys = x.unflatten(1, (2, -1)).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(queries, keys, keys)


def attention_over(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    queries = (x @ w).unflatten(1, (2, -1)).transpose(0, 1)[None]
    keys = chosen(x, count).unflatten(1, (2, -1)).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(queries, keys, keys)


PRODUCTS = [rows, linear, columns, terms, few_rows_of_terms, one_row_of_terms, one_product, batch]
PRODUCTS += [added, attention, attention_over]


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grads", [False, True])
def test_a_product_of_a_symbolic_size_that_may_be_zero(
    product: Product, dtype: torch.dtype, grads: bool
) -> None:
    jitney.reset()
    log.clear()
    compiled = jitney.compile(product, dynamic=True)
    for count in (7, 30, 0, 1):
        x = torch.randn(30, 16).to(dtype).requires_grad_(grads)
        w = torch.randn(16, 16).to(dtype).requires_grad_(grads)
        assert_equal_to_eager(product, compiled, (x, w, count), training=grads)
    assert not log.events("interpreted_node")
