"""Training of conv nets: gradients of convolutions, sums by channel, what is left to eager."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jitney
from jitney.diagnostics.equality import scale_of
from jitney.events import log
from jitney.loops.ir import Extern, Gemm
from tests.equal import assert_equal, assert_equal_to_eager

# images, filters, stride, padding, dilation, groups
CONVOLUTIONS = {
    "plain": ((2, 16, 9, 7), (16, 16, 3, 3), 1, 1, 1, 1),
    "three channels": ((2, 3, 12, 12), (16, 3, 3, 3), 1, 1, 1, 1),
    "stride": ((2, 16, 9, 8), (32, 16, 3, 3), 2, 1, 1, 1),
    "1x1": ((2, 16, 5, 5), (24, 16, 1, 1), 1, 0, 1, 1),
    "1x1 of every other place": ((2, 16, 9, 8), (32, 16, 1, 1), 2, 0, 1, 1),
    "a stem": ((2, 3, 20, 20), (16, 3, 7, 7), 2, 3, 1, 1),
    "groups": ((2, 32, 8, 8), (32, 16, 3, 3), 1, 1, 1, 2),
    "dilation": ((1, 16, 11, 11), (8, 16, 3, 3), 1, 2, 2, 1),
    "stride and dilation": ((3, 16, 11, 13), (8, 16, 3, 3), 3, 1, 2, 1),
    "places not reached": ((4, 20, 9, 9), (5, 20, 2, 2), 3, 0, 1, 1),
    "more border than image": ((1, 16, 3, 3), (16, 16, 4, 4), 1, 2, 1, 1),
    "few filters, uneven borders": ((1, 3, 4, 4), (3, 3, 3, 3), 2, 2, 1, 1),
    "one place behind others": ((1, 3, 1, 3), (3, 3, 3, 3), 2, (4, 2), (2, 3), 1),
    "few filters for lanes": ((2, 20, 6, 6), (3, 20, 3, 3), 1, 1, 1, 1),
}


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def leaf(*shape: int) -> Tensor:
    return rand(*shape).requires_grad_()


def nodes_built() -> list[Any]:
    return [n for e in log.events("program") for n in e.data["program"].nodes]


def extern_calls() -> set[str]:
    return {n.target for n in nodes_built() if isinstance(n, Extern)}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_a_convolution(name: str) -> None:
    image, filters, *options = CONVOLUTIONS[name]

    def convolve(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x.sin(), w, bias, *options)

    log.clear()
    inputs = (leaf(*image), leaf(*filters), leaf(filters[0]))
    assert_equal_to_eager(convolve, jitney.compile(convolve), inputs, training=True)
    assert not extern_calls()


def transforms() -> int:
    products = [n for n in nodes_built() if isinstance(n, Gemm)]
    return sum(bool(n.batch) and int(n.batch[0].extent) == 6 for n in products)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_gradients_of_any_convolution(seed: int) -> None:
    draw = random.Random(seed)
    groups, size = draw.choice([1, 1, 2, 4]), draw.randint(1, 5)
    depth, filters = draw.choice([1, 2, 3, 8, 16, 20]), groups * draw.choice([1, 2, 5, 8, 16, 24])
    stride, padding, dilation = draw.randint(1, 3), draw.randint(0, 4), draw.randint(1, 3)
    least = max(1, dilation * (size - 1) + 1 - 2 * padding)
    image = (draw.randint(1, 4), groups * depth, *(least + draw.randint(0, 12) for _ in range(2)))

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.sin(), w, None, stride, padding, dilation, groups)

    inputs = (leaf(*image), leaf(filters, depth, size, size))
    assert_equal_to_eager(convolve, jitney.compile(convolve), inputs, training=True)


TRANSFORMED = {
    "whole tiles": ((4, 64, 16, 16), (64, 64, 3, 3), 1),
    "a part of a tile": ((2, 64, 31, 30), (96, 64, 3, 3), 1),
    "no border": ((4, 64, 18, 17), (96, 64, 3, 3), 0),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_gradients_with_fewer_multiplications(name: str) -> None:
    image, filters, padding = TRANSFORMED[name]

    def convolve(x: Tensor, w: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)  # not a call that can run twice: the convolution itself is a plain sum
        return F.conv2d(x.sin(), w, padding=padding)

    log.clear()
    x = rand(*image).to(memory_format=torch.channels_last).requires_grad_()
    inputs = (x, leaf(*filters), torch.zeros(()))
    assert_equal_to_eager(convolve, jitney.compile(convolve), inputs, training=True)
    products = [n for n in nodes_built() if isinstance(n, Gemm)]
    assert transforms() == 1 and len(products) == 1 + 1 + 6
    assert not log.events("rerun_eagerly")


def test_filters_in_channels_last() -> None:
    w = rand(16, 16, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    inputs = (leaf(2, 16, 8, 8), w)
    assert_equal_to_eager(F.conv2d, jitney.compile(F.conv2d), inputs, training=True)


def test_gradients_of_depthwise_and_transposed_convolutions_are_library_calls() -> None:
    def convolve(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv_transpose2d(F.conv2d(x, w, groups=16), v)

    log.clear()
    inputs = (leaf(2, 16, 8, 8), leaf(16, 1, 3, 3), leaf(16, 4, 3, 3))
    assert_equal_to_eager(convolve, jitney.compile(convolve), inputs, training=True)
    assert "aten.convolution_backward.default" in extern_calls()


class Smooth(nn.Module):
    """Convolutions, batch norm, pooling: nothing whose slope jumps."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairs
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.avg_pool2d(torch.tanh(norm(convolution(x))), 2)
        return x.mean((2, 3)).square().sum()


def gradients(model: nn.Module, call: Callable[..., Tensor], x: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(call(x), parameters), strict=True))


@pytest.mark.parametrize("side", [16, 64])
def test_a_net_without_kinks_trains_as_eager(side: int) -> None:
    torch.manual_seed(0)
    model, x = Smooth(3, 16, 32), rand(8, 3, side, side)
    exact = copy.deepcopy(model).double()
    log.clear()
    found = gradients(model, jitney.compile(model), x)
    assert not extern_calls()
    assert_equal(found, gradients(model, model, x), gradients(exact, exact, x.double()))


def test_what_is_kept_for_the_backward_pass() -> None:
    """Neither the norm's output nor its ReLU, and places of maxima in 16 bits."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3)
    )
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        jitney.compile(model)(rand(2, 3, 18, 18))
    images = [t for t in kept if t.shape == (2, 16, 16, 16)]
    assert len(images) == 1 and images[0].is_contiguous(memory_format=torch.channels_last)
    assert [t.dtype for t in kept if not t.is_floating_point()] == [torch.int16]


def statistics(norm: nn.Module, x: Tensor) -> list[Tensor]:
    norm(x)
    return [norm.running_mean, norm.running_var]


@pytest.mark.parametrize("shape", [(64, 8), (16, 8, 40), (32, 8, 64, 64), (4, 8, 4, 8, 8)])
@pytest.mark.parametrize("last", [False, True])
def test_statistics_far_from_zero_are_as_exact_as_eager(shape: tuple[int, ...], last: bool) -> None:
    x = rand(*shape) + 100.0
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    norm: Callable[..., Any] = kinds[len(shape)]
    found = statistics(jitney.compile(norm(8, momentum=1.0)), x)
    wanted = statistics(norm(8, momentum=1.0).double(), x.double())
    for ours, exact in zip(found, wanted, strict=True):
        assert ((ours - exact).abs() / exact).max() < 3e-7


def two_convolutions(x: Tensor, w: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    seen.add_(1)
    return F.conv2d(F.conv2d(x, w, padding=1).tanh(), v, padding=1)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e12])
def test_gradients_that_are_huge_or_not_finite_are_eagers(number: float) -> None:
    inputs = (leaf(2, 32, 16, 16), leaf(64, 32, 3, 3), leaf(64, 64, 3, 3))
    log.clear()
    compiled = jitney.compile(two_convolutions)
    out = compiled(*inputs, torch.zeros(()))
    grad = torch.ones_like(out)
    grad[1, 3, 4, 5] = number
    ours = torch.autograd.grad(out, inputs, grad)
    theirs = torch.autograd.grad(two_convolutions(*inputs, torch.zeros(())), inputs, grad)
    assert transforms() and len(log.events("rerun_eagerly")) == 1
    for a, e in zip(ours, theirs, strict=True):
        close = {"rtol": 1e-4, "atol": 1e-5 * scale_of(e), "equal_nan": True}
        torch.testing.assert_close(a, e, **close)


def test_gradients_of_few_places_are_not_eagers() -> None:
    x, w, v = leaf(2, 32, 16, 16), leaf(64, 32, 3, 3), leaf(64, 64, 3, 3)

    def one_place(*inputs: Tensor) -> Tensor:
        return two_convolutions(*inputs)[1, :, 5, 6].tanh()

    log.clear()
    compiled = jitney.compile(one_place)
    assert_equal_to_eager(one_place, compiled, (x, w, v, torch.zeros(())), training=True)
    assert transforms() and not log.events("rerun_eagerly")


def test_a_group_norm_between_convolutions() -> None:
    norm = nn.GroupNorm(2, 16)
    first, last = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

    def forward(x: Tensor) -> Tensor:
        return last(norm(x + first(x).relu())) + x

    assert_equal_to_eager(forward, jitney.compile(forward), (leaf(2, 16, 4, 9),), training=True)
