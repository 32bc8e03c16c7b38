"""Reductions, softmax and norms, lowered and interpreted, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from tests.loops.lowered import check

aten = torch.ops.aten
ROWS = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))

REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True), (x > 0).sum(1)),
    "sum_dtype": lambda x: (x.sum(dtype=torch.float64), x.bfloat16().sum(1)),
    "mean": lambda x: (x.mean(), x.mean(-1, keepdim=True)),
    "prod": lambda x: (x.prod(), x.prod(1)),
    "extremes": lambda x: (x.amax(0), x.amin((1, 2)), x.max(), torch.aminmax(x, dim=1)),
    "with_positions": lambda x: (x.max(1), x.min(-1, keepdim=True), x.argmax(), x.argmin(0)),
    "logical": lambda x: ((x > 2).any(), (x > -1).all(1), torch.count_nonzero(x > 0, 0)),
    "moments": lambda x: (x.var(), x.std(0), torch.var_mean(x, (0, 1)), x.var(1, correction=0)),
    "norms": lambda x: (x.norm(), x.norm(3, 1), x.norm(float("inf")), x.norm(1, 0), x.norm(0, 0)),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "over_one_element": lambda x: (
        x[:1].sum(0),
        x[:1].argmax(0),
        x[:, :1, :1].var(0),
        x[0, 0, 0].sum(),
    ),
    "scans": lambda x: (x.cumsum(1), x.long().cumprod(0), x.logcumsumexp(2), (x > 0).cumsum(1)),
    "scan_with_special_values": lambda x: (
        (x / (x > 0)).cumsum(1),
        (x / (x > 0)).cummax(1),
        (x / (x > 0)).logcumsumexp(1),
    ),
    "running_extremes": lambda x: (x.cummax(1), x.round().cummin(-1), x.long().cummax(0)),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0), x[:, :1].softmax(1)),
    "layer_norm": lambda x: F.layer_norm(x, (4, 5), x[0], x[1]),
    "rms_norm": lambda x: F.rms_norm(x, (5,), x[0, 0]),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    check(REDUCTIONS[name], ROWS)


@pytest.mark.parametrize("strides", [(1, 0), (0, 0)])
def test_nothing_is_read_of_an_empty_tensor(strides: tuple[int, int]) -> None:
    """Its stride of 0 moves what its rows are read for out of the loops over them."""
    empty = torch.empty_strided((2, 0), strides)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copy = x.half().to(x.dtype)
        return copy, F.layer_norm(copy, (0,)), copy.sum(1), copy.prod(1)

    check(program, empty)


def test_running_products_do_not_overflow_before_eager_s() -> None:
    far = torch.tensor([[0.0, 1e30, 1e30, 1e30], [1e30, 1e-30, 1e-30, 1e30]])
    check(lambda x: x.cumprod(1), far, allow_extern=True)


def test_a_running_sum_stays_where_zeros_are_added() -> None:
    """The decay from the last position of a padded sequence to its end is 1, not nearly 1."""
    steps = F.pad(-10 * torch.rand(8, 9, generator=torch.Generator().manual_seed(0)), (0, 55))
    sums = jitney.compile(lambda x: x.cumsum(1))(steps)
    assert torch.equal(sums[:, 8:], sums[:, 8:9].expand(-1, 56))
    assert torch.equal(sums, steps.cumsum(1))


def test_the_largest_of_nothing_is_eagers_error() -> None:
    with pytest.raises(RuntimeError, match="numel"):
        jitney.compile(lambda x: x.max() + 1)(torch.zeros(0))


def test_no_dimension_is_not_every_dimension() -> None:
    def over_none(x: torch.Tensor) -> Any:
        found = x > 0
        return found.any(dim=()), found.all(dim=(), keepdim=True)

    for ours, eager in zip(jitney.compile(over_none)(ROWS), over_none(ROWS), strict=True):
        torch.testing.assert_close(ours, eager)


def test_nothing_to_reduce() -> None:
    check(lambda x: (x.sum(0), x.prod(1), x.mean(), x.any(0), x.all(0)), torch.zeros(0, 3))


def test_extremes_keep_nan_and_its_first_place() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0], [4.0, 4.0, 0.0]])
    check(lambda x: (x.amax(1), x.max(1), x.argmax(), x.argmin(1), x.min()), x)


def test_softmax_gradients() -> None:
    def gradients(grad: torch.Tensor, x: torch.Tensor) -> Any:
        return (
            aten._softmax_backward_data(grad, x.softmax(1), 1, torch.float32),
            aten._log_softmax_backward_data(grad, x.log_softmax(1), 1, torch.float32),
        )

    check(gradients, ROWS, ROWS * 2)


@pytest.mark.parametrize("rows", [3, 1])
def test_layer_norm_gradients(rows: int) -> None:
    def gradients(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Any:
        out, mean, rstd = aten.native_layer_norm(x, (5,), w, w, 1e-5)
        mask = [True, True, True]
        return out, aten.native_layer_norm_backward(grad, x, (5,), mean, rstd, w, w, mask)

    check(gradients, ROWS[:rows].contiguous(), torch.randn(5), torch.randn(rows, 4, 5))


def test_batch_norm() -> None:
    def run(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        still = aten._native_batch_norm_legit_no_training(x, w, b, mean, var, 0.1, 1e-5)[0]
        return still, aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.1, 1e-5)

    vectors = (torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5)
    check(run, torch.randn(2, 3, 4, 5), *vectors)


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_gradients(train: bool) -> None:
    def gradients(x: Any, w: Any, mean: Any, var: Any, grad: Any) -> Any:
        saved = aten._native_batch_norm_legit_functional(x, w, w, mean, var, train, 0.1, 1e-5)
        kept = saved[1:3] if train else (None, None)
        mask = [True, True, True]
        return aten.native_batch_norm_backward(grad, x, w, mean, var, *kept, train, 1e-5, mask)

    x = torch.randn(2, 3, 4, 5)
    check(gradients, x, torch.randn(3), torch.randn(3), torch.rand(3) + 0.5, torch.randn_like(x))


def test_channels_of_a_group_that_lie_together_are_lanes() -> None:
    """The moments are found by channel, then put together."""

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, 8, w, w)

    image = (torch.randn(2, 16, 13, 14) * 3 + 5).to(memory_format=torch.channels_last)
    check(norm, image, torch.randn(16))
    check(norm, image.bfloat16(), torch.randn(16).bfloat16(), atol=3e-2, rtol=3e-2)
    check(norm, image.clone().index_fill_(0, torch.tensor(1), float("inf")), torch.randn(16))


def test_group_norm() -> None:
    image = torch.randn(2, 4, 3, 5)
    check(lambda x, w: F.group_norm(x, 2, w, w), image, torch.randn(4))
    channels_last = image.to(memory_format=torch.channels_last)
    check(lambda x, w: F.group_norm(x, 2, w, w).sum((2, 3)), channels_last, torch.randn(4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    target = torch.tensor([0, 3, -100, 2])

    def losses(x: torch.Tensor, target: torch.Tensor, w: torch.Tensor) -> Any:
        plain = F.cross_entropy(x, target, reduction=reduction)
        return plain, F.nll_loss(x, target, w, reduction=reduction)

    check(losses, torch.randn(4, 5), target, torch.rand(5))
    image, classes = torch.randn(4, 5, 2, 3), torch.randint(0, 5, (4, 2, 3))
    check(lambda x, t: F.cross_entropy(x, t, reduction=reduction), image, classes)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_what_is_ignored_may_be_infinite(reduction: str) -> None:
    """A padding class that a model has suppressed, say."""
    logits = torch.randn(4, 5)
    logits[:, 0] = -float("inf")
    target = torch.tensor([1, 0, 4, 0])
    check(lambda x, t: F.cross_entropy(x, t, ignore_index=0, reduction=reduction), logits, target)


def test_nll_gradients() -> None:
    def gradients(x: Any, target: Any, grad: Any, w: Any) -> Any:
        _, total = aten.nll_loss_forward(x, target, w, 1, -100)
        mean = aten.nll_loss_backward(grad, x, target, w, 1, -100, total)
        return mean, aten.nll_loss_backward(x[:, 0], x, target, None, 0, -100, total)

    target = torch.tensor([0, 3, -100, 2])
    check(gradients, torch.randn(4, 5), target, torch.randn(()), torch.rand(5))
