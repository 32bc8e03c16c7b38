"""Infinities, NaN and huge numbers in a transformed convolution are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from jitney.events import log
from jitney.loops.ir import Gemm


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def image() -> Tensor:
    return rand(1, 64, 21, 30).to(memory_format=torch.channels_last)


def convolved(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1).relu()


def transforms() -> int:
    """How many products of the programs built since the log was cleared have six in one."""
    programs = [e.data["program"] for e in log.events("program")]
    products = [n for p in programs for n in p.nodes if isinstance(n, Gemm)]
    return sum(bool(n.batch) and int(n.batch[0].extent) == 6 for n in products)


@pytest.fixture(scope="module")
def compiled() -> Any:
    log.clear()
    call = jitney.compile(convolved)
    call(image(), rand(80, 64, 3, 3))
    assert transforms() == 1
    return call


@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan"), 3e38, -1e9])
@pytest.mark.parametrize("column", [0, 5, 29])
@pytest.mark.parametrize("where", ["image", "filters"])
def test_values_are_eagers_own(compiled: Any, number: float, column: int, where: str) -> None:
    x, w = image(), rand(80, 64, 3, 3)
    if where == "image":
        x[0, 3, 20, column] = number
    else:
        w[79, 5, 2, column % 3] = number
    log.clear()
    torch.testing.assert_close(compiled(x, w), convolved(x, w), rtol=0, atol=0, equal_nan=True)
    assert len(log.events("rerun_eagerly")) == 1


@pytest.mark.parametrize("times", [100, 300, 1e3, 1e5])
def test_neighbours_of_a_large_element_keep_their_digits(compiled: Any, times: float) -> None:
    x, w = image(), rand(80, 64, 3, 3)
    x[0, 3, 10, 13] = times * x.abs().mean()
    truth = convolved(x.double(), w.double())
    untouched = torch.ones(21, 30, dtype=torch.bool)
    untouched[9:12, 12:15] = False
    ours, eager = (
        (y.double() - truth)[..., untouched].abs().max() for y in (compiled(x, w), convolved(x, w))
    )
    assert ours <= 4 * eager


def test_ordinary_numbers_are_not_run_again(compiled: Any) -> None:
    x, w = image() * 1e3, rand(80, 64, 3, 3)
    log.clear()
    torch.testing.assert_close(compiled(x, w), convolved(x, w), rtol=1e-4, atol=1.0)
    assert not log.events("rerun_eagerly")


def test_frozen_filters() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Conv2d(64, 64, 3, padding=1)
    ).eval()
    x = rand(1, 64, 24, 24)
    log.clear()
    with torch.no_grad():
        frozen = jitney.compile(model, options={"freeze": True})
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-4)
        assert transforms() == 2
        x[0, 0, 12, 13] = float("inf")
        torch.testing.assert_close(frozen(x), model(x), rtol=0, atol=0, equal_nan=True)
    assert len(log.events("rerun_eagerly")) == 1


def test_beside_attention_without_dropout() -> None:
    def attending(x: Tensor, w: Tensor) -> Tensor:
        y = convolved(x, w).flatten(2).mT
        return F.scaled_dot_product_attention(y, y, y)

    x, w = image(), rand(80, 64, 3, 3) / 24
    log.clear()
    found = jitney.compile(attending)(x, w)
    torch.testing.assert_close(found, attending(x, w), rtol=1e-4, atol=1e-4)
    assert transforms() == 1


def test_what_cannot_run_twice_is_summed_plainly() -> None:
    def counting(x: Tensor, w: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)
        return convolved(x, w)

    def noisy(x: Tensor, w: Tensor) -> Tensor:
        return convolved(x, w) + torch.rand(())

    x, w, seen = image(), rand(80, 64, 3, 3), torch.zeros(())
    x[0, 3, 20, 5] = float("inf")
    log.clear()
    finite = jitney.compile(counting)(x, w, seen).isfinite()
    assert torch.equal(finite, convolved(x, w).isfinite())
    assert seen == 1
    jitney.compile(noisy)(x, w)
    assert transforms() == 0
