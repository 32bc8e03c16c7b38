"""Dropout of what is not in rows draws eager's numbers, on processors of either kind."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from jitney import torch_api
from jitney.diagnostics.report import report
from jitney.events import log

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.view(12, 10).t(),
    "permuted": lambda x: x.view(2, 3, 4, 5).permute(2, 0, 3, 1),
    "channels last": lambda x: x.view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x.view(12, 10)[:, :1].expand(12, 10),
    "every other": lambda x: x.view(12, 10)[:, ::2],
}


def seeded(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    return [function(x), function(x)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_of_what_is_not_in_rows(layout: str, dynamic: bool | None) -> None:
    def f(x: Tensor) -> Tensor:
        y = F.dropout(LAYOUTS[layout](x) * 2, 0.3)
        return y + torch.empty_like(y).bernoulli_(0.4)

    log.clear()
    x = torch.arange(120.0)
    for given, wanted in zip(
        seeded(jitney.compile(f, dynamic=dynamic), x), seeded(f, x), strict=True
    ):
        assert torch.equal(given, wanted) and given.stride() == wanted.stride()
    assert not report(log.events()).fallbacks


def test_numbers_drawn_row_by_row() -> None:
    """As by MKL on Intel's processors."""

    def f(x: Tensor) -> Tensor:
        return torch.empty_like(x).bernoulli_(0.5)

    def by_rows(x: Tensor) -> Tensor:
        return torch.empty_like(x).copy_(torch.empty(x.shape).bernoulli_(0.5))

    x = torch.ones(10, 12).t()
    with mock.patch.object(torch_api, "draws_by_memory", lambda: False):
        given = seeded(jitney.compile(f), x)
    for one, other in zip(given, seeded(by_rows, x), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_training_of_a_transformer_with_dropout() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train()
    compiled, x, found = jitney.compile(layer), torch.randn(3, 5, 8), []
    log.clear()
    for run in (layer, compiled):
        layer.zero_grad()
        results = seeded(run, x)
        results[1].square().sum().backward()
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        found.append([*(r.detach() for r in results), *(g.clone() for g in gradients)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert not report(log.events()).fallbacks
