"""Writes through views that ``expand``, ``unfold`` and ``as_strided`` give, in which an element of
memory may stand several times: what is written stays, and nothing is added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal


def to_the_same_sizes(x: torch.Tensor) -> Any:
    r = x.expand(7)
    r.mul_(0.1)
    return r


def of_a_result(x: torch.Tensor) -> Any:
    y = x * 3
    r = y.expand_as(x)
    r.add_(0.1)
    return y, r


def with_dimensions_in_front(x: torch.Tensor) -> Any:
    r = x.expand(1, 1, *x.shape)
    r.copy_(torch.full_like(r, 5))
    return r, x * 1


def a_part_of_rows(x: torch.Tensor) -> Any:
    r = x.expand(3, *x.shape)[1]
    r.mul_(0.1)
    return x * 1


def a_part_of_rows_of_a_result(x: torch.Tensor) -> Any:
    y = x * 3
    r = y.broadcast_to(2, 7)[:1]
    r.mul_(0.1)
    return y, r


def one_of_tensors_that_are_broadcast(x: torch.Tensor) -> Any:
    r = torch.broadcast_tensors(x, torch.ones(2, 1, device=x.device))[0][1]
    r.mul_(0.1)
    return x * 1


def windows_that_leave_some_out(x: torch.Tensor) -> Any:
    r = x.unfold(0, 2, 2)
    r.mul_(0.1)
    return x * 1


def a_part_of_windows(x: torch.Tensor) -> Any:
    r = x.as_strided((2, 5), (1, 1))
    r[0, 1:].mul_(0.1)
    return x * 1


def a_part_of_windows_of_a_result(x: torch.Tensor) -> Any:
    y = x * 3
    r = torch.as_strided(y, (3, 3), (1, 1))
    r.diagonal().mul_(0.1)
    r[0].mul_(0.1)
    return y, r


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": lambda f: jitney.compile(f, options={"eager_on_bug": False}),
    "dynamic": lambda f: jitney.compile(f, dynamic=True, options={"eager_on_bug": False}),
    "torch": lambda f: torch.compile(f, backend="jitney"),
}


FLOATS = (to_the_same_sizes, of_a_result, a_part_of_rows, a_part_of_rows_of_a_result)
FLOATS += (one_of_tensors_that_are_broadcast, windows_that_leave_some_out)
FLOATS += (a_part_of_windows, a_part_of_windows_of_a_result)
CASES = [(f, d) for f in FLOATS for d in (torch.float32, torch.float16)]
CASES += [(with_dimensions_in_front, d) for d in (torch.float32, torch.int32, torch.bool)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_a_write_is_what_it_writes(
    function: Callable[..., Any], dtype: torch.dtype, way: str
) -> None:
    special = dtype.is_floating_point
    values = [6e4, 3.14159, torch.inf, torch.nan, 7e-5, 1, 2] if special else [2**30, 3, 0, 2, 7, 1]
    jitney.reset()
    torch._dynamo.reset()
    mine, eagers = torch.tensor(values, dtype=dtype), torch.tensor(values, dtype=dtype)
    found, expected = WAYS[way](function)(mine), function(eagers)
    assert_equal([found, mine], [expected, eagers])
    assert sharers(mine, found) == sharers(eagers, expected)


def sharers(given: torch.Tensor, results: Any) -> list[bool]:
    """Which of the results lie in the memory of ``given``."""
    memory = given.untyped_storage().data_ptr()
    results = results if isinstance(results, tuple) else (results,)
    return [result.untyped_storage().data_ptr() == memory for result in results]


@pytest.mark.parametrize("way", ["compile", "dynamic"])
def test_gradients_pass_through_such_a_view(way: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * w
        r = y.expand(1, *y.shape)
        r.mul_(w)
        return y.sum() + r.exp().sum()

    def gradients(call: Any) -> Any:
        torch.manual_seed(0)
        x, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
        return torch.autograd.grad(call(x, w), (x, w))

    jitney.reset()
    assert_equal(gradients(WAYS[way](f)), gradients(f))


def test_windows_of_each_element_once_keep_the_sign_of_zero() -> None:
    def f(x: torch.Tensor) -> Any:
        r = x.unfold(-1, 2, 2)
        r.mul_(2)
        return r, x * 1

    mine, eagers = (torch.tensor([[-0.0, 1, 2, -0.0], [3, -0.0, 0, 1]]) for _ in range(2))
    found, expected = jitney.compile(f, fullgraph=True)(mine), f(eagers)
    assert_equal([*found, mine], [*expected, eagers])
    assert torch.equal(mine.signbit(), eagers.signbit())
    assert found[0].stride() == expected[0].stride()


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_symbolic_size_that_is_one_is_expanded_to_none(needs_grad: bool) -> None:
    def expanded(x: torch.Tensor) -> torch.Tensor:
        begin = (x * 2).as_strided((x.shape[0] // 2,), (1,), 1)
        begin.detach().clamp_(-2, 2)
        rows = begin.expand(2, begin.shape[0])
        return rows.expand(-1, rows.shape[1] - 1)

    x = torch.randn(3, requires_grad=needs_grad)
    found = jitney.compile(expanded, dynamic=True)(x)
    assert found.shape == expanded(x).shape == (2, 0)
