"""Numbers that a dtype does not hold: eager raises, so does a compiled call, constants or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

CALLS: dict[str, Callable[..., Any]] = {
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(x > 1, n),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "clamp": lambda x, n: (x.clamp(max=n), x.clamp(-n, n), x.clamp_min(n)),
    "full": lambda x, n: (torch.full((2,), n, dtype=x.dtype), x.new_full((2,), n)),
    "full_like": torch.full_like,
    "fill_": lambda x, n: x.clone().fill_(n),
    "sum": lambda x, n: x.masked_fill(x > 1, n * 2 - n),
}
NUMBERS: dict[torch.dtype, tuple[float, ...]] = {
    torch.uint8: (3, 5, 255, 256, 300, 7),
    torch.int8: (3, 5, 127, 128, -128, -129),
    torch.int32: (3, 5, 2**31 - 1, 2**31, 2**33),
    torch.int64: (3, 5, 2**31, 2**33, -(2**40)),
    torch.float16: (3.5, 5.5, 65504.0, 70000.0, -1e9, float("-inf")),
    torch.bfloat16: (3.5, 5.5, 1e37, 1e39, float("inf")),
    torch.float32: (3.5, 5.5, 1e37, 1e39, -1e59, 1e70, float("nan")),
    torch.float64: (3.5, 5.5, 1e39, 1e70, float("-inf")),
}


def outcome(call: Callable[..., Any], x: torch.Tensor, number: float) -> tuple[Any, str]:
    try:
        return call(x, number), ""
    except RuntimeError as error:
        return (), str(error)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_number_that_does_not_fit_raises(name: str, dtype: torch.dtype) -> None:
    call, x = CALLS[name], torch.arange(4).to(dtype)
    changing = jitney.compile(call, dynamic=True, recompile_limit=20)
    for number in NUMBERS[dtype]:
        wanted, error = outcome(call, x, number)
        fixed = jitney.compile(lambda x, number=number: call(x, number))
        for compiled in (changing, lambda x, _, fixed=fixed: fixed(x)):
            got, raised = outcome(compiled, x, number)
            assert raised == error, number
            torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_numbers_that_fit_are_no_constants() -> None:
    compiled = jitney.compile(lambda x, n, a: x.masked_fill(x > n, a).half() + n, dynamic=True)
    log.clear()
    for n, a in ((2, 0.5), (3, 7.5), (5, -1e30)):
        x = torch.arange(4.0)
        assert torch.equal(compiled(x, n, a), x.masked_fill(x > n, a).half() + n)
    assert len(log.events("entry")) == 2 and not log.events("eager_graph")


@pytest.mark.parametrize("eps", [0.1, 0.75, 1.0, float("nan"), 0.0, -1.0])
def test_logit_asks_for_its_least_value_first(eps: float) -> None:
    x = torch.tensor([0.0, 0.2, 0.5, 0.6, 0.9, 1.0, float("nan")])
    for dynamic in (None, True):
        call = jitney.compile(torch.logit, dynamic=dynamic)
        torch.testing.assert_close(call(x, eps), torch.logit(x, eps), equal_nan=True)
