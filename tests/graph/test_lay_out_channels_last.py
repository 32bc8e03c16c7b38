"""Layout inside a conv net: equal results, results as traced, views of what was laid out anew."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney.graph.lay_out_channels_last import lay_out_channels_last
from tests.equal import assert_equal_to_eager
from tests.graph.regions import trace

X, W, V = torch.randn(2, 3, 8, 8), torch.randn(8, 3, 3, 3), torch.randn(6, 8, 1, 1)


def _strides(function: object, *inputs: Tensor) -> dict[str, tuple[int, ...]]:
    graph = trace(function, *inputs).forward.graph  # type: ignore[arg-type]
    lay_out_channels_last(graph)
    values = {n.name: n.meta["val"] for n in graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    return {name: value.stride() for name, value in values.items()}


def _net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.max_pool2d(F.conv2d(x, w).relu(), 2), v)


def test_values_between_convolutions_have_channels_last() -> None:
    strides = _strides(_net, X, W, V)
    assert strides["relu"] == strides["convolution"] == (288, 1, 48, 8)
    assert strides["clone_default"] == (54, 9, 3, 1)


def test_one_convolution_is_left_alone() -> None:
    assert _strides(lambda x, w: F.conv2d(x, w), X, W)["convolution"] == (288, 36, 6, 1)


def _returns_inside(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    a = F.conv2d(x, w)
    b = F.conv2d(a, v)
    return a, b.transpose(1, 2), b.mean((2, 3))


def _views(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    a = F.conv2d(F.conv2d(x, w), v)
    flat = a.flatten(1) * 2
    tokens = a.flatten(2).transpose(1, 2) + 1
    return flat, tokens, a.view(2, 3, 2, 36).softmax(-1), a.contiguous().view(-1) * 2


def _as_strided(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    a = F.conv2d(F.conv2d(x, w), v)
    return a.as_strided((2, 5), (10, 3)) + 1


def _mixed(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    a = F.conv2d(x, w).sigmoid()
    gate = torch.sigmoid(F.conv2d(F.adaptive_avg_pool2d(a, 1), torch.ones(8, 8, 1, 1)))
    joined = torch.cat([a * gate, F.interpolate(a, scale_factor=1.0)], 1)
    return F.conv2d(F.pad(joined, (1, 0, 1, 0)), torch.cat([v, v], 1)).unbind(0)[1]


def test_equal_to_eager_whatever_reads_the_images() -> None:
    for function in (_net, _returns_inside, _views, _as_strided, _mixed):
        jitney.reset()
        assert_equal_to_eager(function, jitney.compile(function), (X, W, V))


def test_images_of_one_row_beside_a_changing_batch() -> None:
    """Torch's fakes take channels that lie last for rows where a size of 1 stands between."""
    weight = torch.randn(3, 2, 3, 3)

    def flat(x: Tensor) -> tuple[Tensor, ...]:
        image = F.conv2d(x, weight, padding=1)
        return image.flatten(1), image.relu().reshape(len(x), -1) * 2

    compiled = jitney.compile(flat)
    for batch in (2, 3, 4):
        assert_equal_to_eager(flat, compiled, (torch.randn(batch, 2, 1, 5),))


def test_random_numbers_are_eager_s() -> None:
    def noisy(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        a = F.conv2d(x, w)
        return F.conv2d(F.dropout(a + torch.randn_like(a) * torch.rand_like(a)), v)

    results = []
    for function in (noisy, jitney.compile(noisy)):
        torch.manual_seed(0)
        results.append(function(X, W, V))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
