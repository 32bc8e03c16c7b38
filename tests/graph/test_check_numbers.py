"""Numbers that a dtype does not hold: eager raises, so does a compiled call, constants or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

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
    "alpha": lambda x, n: (torch.add(x, x, alpha=n), x.clone().sub_(x, alpha=n)),
    "sum": lambda x, n: x.masked_fill(x > 1, n * 2 - n),
    "rsub": lambda x, n: torch.rsub(x, x, alpha=n),
    "picked": lambda x, n: (x.scatter(0, FIRST, n), x.index_fill(0, FIRST, n)),
    "index_add": lambda x, n: x.index_add(0, FIRST, x[:2], alpha=n),
    "threshold": lambda x, n: (F.threshold(x, 1, n), F.threshold(x, n, 1)),
    "bound": F.hardshrink,
    "slope": F.leaky_relu,
    "weight": lambda x, n: torch.lerp(x, x + 1, n),
    "scaled": lambda x, n: torch.addcmul(x, x, x, value=n),
    # without the 3, whose 11 n (2 + 9) libraries round once or twice
    "product": lambda x, n: torch.addmm(x.view(2, 2), *[x.clamp(max=2).view(2, 2)] * 2, alpha=n),
    "addr": lambda x, n: torch.addr(x[:2], x[:2], x[2:], alpha=n),
    "linspace": lambda x, n: torch.linspace(n, 2, 5, dtype=x.dtype),
    "power": lambda x, n: x ** (n * 2 - n if type(n) is int and abs(n) < 9 else 2),
}
FIRST = torch.tensor([0, 1])
NUMBERS: dict[torch.dtype, tuple[float, ...]] = {
    torch.uint8: (3, 5, 255, 256, 300, 7),
    torch.int8: (3, 5, 127, 128, -128, -129),
    torch.int16: (3, 5, 2**15 - 1, 2**15, 2**15 + 1, 40000),
    torch.int32: (3, 5, 2**31 - 1, 2**31, 2**33),
    torch.int64: (3, 5, 2**31, 2**33, -(2**40)),
    torch.float16: (3.5, 5.5, 65504.0, 70000.0, -1e9, float("-inf")),
    torch.bfloat16: (3.5, 5.5, 1e37, 1e39, float("inf")),
    torch.float32: (3.5, 5.5, 1e37, 1e39, -1e59, 1e70, float("nan")),
    torch.float64: (3.5, 5.5, 1e39, 1e70),
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


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_a_scale_that_is_not_positive(causal: bool) -> None:
    def attention(x: torch.Tensor, scale: float) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=causal, scale=scale)

    call = jitney.compile(attention, dynamic=True)
    x = torch.linspace(-1, 1, 80).reshape(2, 2, 5, 4)
    for scale in (0.5, 0.25, 0.0, -1.0, float("nan"), 2.0):
        torch.testing.assert_close(call(x, scale), attention(x, scale), equal_nan=True)


@pytest.mark.parametrize("first", [0, 2])
def test_a_dilation_of_zero_raises(first: int) -> None:
    x, w = torch.ones(1, 2, 12), torch.ones(3, 2, 3)
    call = jitney.compile(lambda n: F.conv1d(x, w, dilation=n, padding=n))
    if first:
        assert torch.equal(call(first), F.conv1d(x, w, dilation=first, padding=first))
    with pytest.raises(RuntimeError, match="dilation should be greater than zero"):
        call(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dim", [None, 1])
def test_a_variance_without_degrees_of_freedom_warns(dim: int | None, dtype: torch.dtype) -> None:
    x = torch.arange(48).view(6, 8).to(dtype)
    call = jitney.compile(lambda n: x.var(dim, correction=n), dynamic=True)
    for n in (2, 3, 100, 4, 101):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.testing.assert_close(call(n), x.var(dim, correction=n))
        assert sum("degrees of freedom" in str(w.message) for w in seen) == 2 * (n >= 100)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dim", [None, -1])
def test_a_variance_of_too_few_warns_at_each_call(dim: int | None, dynamic: bool | None) -> None:
    call = jitney.compile(lambda x: torch.var_mean(x, dim), dynamic=dynamic)
    for shape in ((3, 2), (3, 1), (1, 1), (3, 1), (1,), (), (5, 4)):
        for _ in range(2):
            x, told = torch.ones(shape), []
            for f in (call, lambda x: torch.var_mean(x, dim)):
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    f(x)
                told.append([str(w.message) for w in seen])
            assert told[0] == told[1]


ODD: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "logit": (lambda x, n: torch.logit(x, eps=n), (0.1, 0.2, 1e61)),
    "addmm": (lambda x, n: torch.addmm(x, x[None], x[:, None] * x, alpha=n), (0.5, 1e300)),
    "linspace": (lambda x, n: torch.linspace(n, 2, 5), (0.5, -3, 1e61)),
    "slope": (lambda x, n: F.leaky_relu(x.int(), n / 10), (3, 5)),
    "lerp": (lambda x, n: torch.lerp(x.int(), x.int(), n / 10), (3, 5)),
    "threshold": (lambda x, n: F.threshold(x.long(), 0, n), (2.5, 1e18, 1e30)),
    "delta": (lambda x, n: F.huber_loss(x, x + 1, delta=n), (0.5, 2.5, -1.0, 0.0)),
    "delta_of_ints": (lambda x, n: F.huber_loss(x.int(), x.int(), delta=n), (0.5, 2.0)),
    "beta": (lambda x, n: F.smooth_l1_loss(x, x + 1, beta=n), (0.5, 2.5, -1.0)),
    "alpha": (lambda x, n: F.celu(x + 1, n), (0.5, 2.5, 0.0, -0.0)),
    "power": (lambda x, n: x.int() ** n, (3, 5, -2)),
    "correction": (lambda x, n: x.var(correction=n), (2.0, 0.5, float("nan"))),
}


@pytest.mark.parametrize("name", ODD)
def test_numbers_that_eager_refuses_or_reads_otherwise(name: str) -> None:
    call, numbers = ODD[name]
    x = torch.arange(5.0) / 4
    changing = jitney.compile(call, dynamic=True)
    for number in numbers:
        wanted, error = outcome(call, x, number)
        fixed = jitney.compile(lambda x, number=number: call(x, number))
        for compiled in (changing, lambda x, _, fixed=fixed: fixed(x)):
            got, raised = outcome(compiled, x, number)
            assert raised == error, number
            torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_an_alpha_of_whole_numbers_is_no_float(dtype: torch.dtype) -> None:
    x, y = torch.arange(5).to(dtype), torch.ones(5)
    adding = jitney.compile(lambda a: x.add(x, alpha=a), dynamic=True)
    with_floats = jitney.compile(lambda a: x.add(y, alpha=a), dynamic=True)
    for alpha in (3, 5, 2.5, 3.5, 1.0):
        torch.testing.assert_close(with_floats(alpha), x.add(y, alpha=alpha))
        wanted, error = outcome(lambda x, a: x.add(x, alpha=a), x, alpha)
        got, raised = outcome(lambda _, a: adding(a), x, alpha)
        assert raised == error and (error or torch.equal(got, wanted))


FILLS: dict[str, Any] = {
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "full_like": torch.full_like,
    "fill_": lambda x, n: x.fill_(n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0]), n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16])
@pytest.mark.parametrize("name", FILLS)
def test_fills_with_numbers_that_change(name: str, dtype: torch.dtype) -> None:
    fill = FILLS[name]
    call = jitney.compile(fill, dynamic=True)
    for number in (2, 3, -3, 2.5, 3.5, -2.5, -3.5, 300, 70000, 1e20, -1e20):
        x = torch.arange(3).to(dtype)
        try:
            expected = fill(x.clone(), number)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)):
                call(x.clone(), number)
        else:
            assert torch.equal(call(x.clone(), number), expected)


@pytest.mark.parametrize("end", [torch.tensor(2.5), torch.tensor(3 + 0j), torch.tensor(2)])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int32])
def test_steps_to_a_tensor(end: torch.Tensor, dtype: torch.dtype | None) -> None:
    def steps(end: torch.Tensor, _: float) -> torch.Tensor:
        return torch.linspace(1, end, 5, dtype=dtype)

    wanted, error = outcome(steps, end, 0)
    got, raised = outcome(jitney.compile(steps), end, 0)
    assert raised == error
    torch.testing.assert_close(got, wanted)


RANGES: dict[str, Callable[..., Any]] = {
    "far ends": lambda x, n: torch.arange(n, n + 3, dtype=torch.uint8),
    "truth values": lambda x, n: torch.arange(n, n + 3, dtype=torch.bool),
    "steps of a maximum": lambda x, n: F.max_pool2d(x, 1, (1, n)),
    "steps of a mean": lambda x, n: F.avg_pool2d(x, 1, (1, n)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", RANGES)
def test_numbers_too_large_to_count_by(name: str, dynamic: bool | None) -> None:
    compiled = jitney.compile(RANGES[name], dynamic=dynamic, recompile_limit=20)
    x = torch.arange(8.0).view(1, 2, 4)
    for number in (1, 2, 3, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63), 2):
        assert str(outcome(compiled, x, number)) == str(outcome(RANGES[name], x, number))


CLAMPS: dict[str, Callable[..., Any]] = {
    "clamp": lambda x, low, high: x.clamp(low, high),
    "min": lambda x, low, high: torch.clamp(x, min=low),
    "max": lambda x, low, high: torch.clamp(x, max=high),
    "in place": lambda x, low, high: x.clone().clamp_(low, high),
    "clamp_min": lambda x, low, high: x.clamp_min(low),
    "clamp_max": lambda x, low, high: x.clamp_max(high),
}
BOUNDS = ((-3, 3), (-10, -5), (0, 300), (300, 400), (-200, 2**20), (-(2**40), 2**40), (2.5, 300))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("name", CLAMPS)
def test_bounds_that_integers_do_not_hold_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    clamp, x = CLAMPS[name], torch.arange(-4, 260, 12).to(dtype)
    for low, high in BOUNDS:
        log.clear()
        fixed = partial(clamp, low=low, high=high)
        wanted, error = outcome(lambda x, _, fixed=fixed: fixed(x), x, 0)
        compiled = jitney.compile(fixed)
        got, raised = outcome(lambda x, _, f=compiled: f(x), x, 0)
        assert raised == error, (low, high)
        if not error:
            assert torch.equal(got, wanted) and got.dtype is wanted.dtype, (low, high)
            assert not log.events("eager_graph"), (low, high)
