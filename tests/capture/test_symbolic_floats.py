"""Floats that are symbols: each step is rounded where Python rounds it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log


def steps(x: torch.Tensor, t: float, dt: float, end: float) -> Any:
    count = 0
    while t < end:
        t += dt
        count += 1
    return x * count, count, t


def discounted(x: torch.Tensor, first: float, second: float, rate: float) -> Any:
    total = 0.0
    for reward in (first, second, first):
        total = reward + rate * total
    return x * total, total, f"{total}", total > 1.71


def products(x: torch.Tensor, a: float, b: float, c: float) -> Any:
    inner = a - 3
    rest = b * c * 0.1, (a + b) * c, 2 * (b + c), -(a + b), a - (b - c), inner * inner
    return x * rest[1], *rest, abs(inner) * abs(inner) < 4.84, (a + b) + c == a + (b + c)


def summed(x: torch.Tensor, a: float, b: float, c: float) -> Any:
    return x + sum([a, b, c, 0.1, 0.2, 0.3]), sum([a, b, c, 0.1, 0.2, 0.3]), max(a, b) + c - b


@pytest.mark.parametrize("fn", [steps, discounted, products, summed])
def test_rounding_is_pythons(fn: Callable[..., Any]) -> None:
    """Ten times ``t += 0.1`` is less than one: the loop turns once more."""
    compiled = jitney.compile(fn, recompile_limit=64)
    numbers = [(0.3, 0.25, 1.5), (0.1, 0.3, 1.2), (0.2, 0.1, 1.3), (0.8, 0.15, 1.7)]
    numbers += [(0.1, 0.1, 1.1), (0.05, 0.35, 1.45), (-0.1, 0.1, 0.9), (0.7, 0.2, 2.5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs eager for guards that do not hold
        for given in numbers:
            found, expected = compiled(torch.ones(2), *given), fn(torch.ones(2), *given)
            assert repr(found[1:]) == repr(expected[1:])
            assert torch.equal(found[0], expected[0])


def zeros(x: torch.Tensor, a: float, n: int) -> Any:
    made = a * 0, -0.0 * n, (a - a) * -1, 0.0 - n, a + 0, 0 - a, a + a - a, sum([a]), -0.0 / n
    return x + 1, *made, a * (n - n), a * round(a / 9), (n % 2) * -0.5 + 0, n / a * -0.0


def signs(x: torch.Tensor, a: float, n: int) -> Any:
    odd = n % 2
    angle = math.atan2(a * odd, -1)
    return x + 1, math.copysign(1, -float(odd)), f"{odd / a}", angle, (a * odd) ** 3


def limits(x: torch.Tensor, a: float, n: int) -> Any:
    same = (a,)
    found = (
        a == same[0],
        a != same[0],
        a < math.inf,
        a == math.inf,
        a > -math.inf,
        a + 1 == 1 + a,
        n < a,
        n != a,
    )
    return x + 1, *found, a - a, a * 0.0, a - math.inf, math.nan * n, n < math.nan, n * math.inf


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [zeros, signs, limits])
def test_special_numbers_are_pythons(fn: Callable[..., Any], dynamic: bool | None) -> None:
    """Zeros keep their signs; an infinity is equal to itself, NaN is not; ``x - x`` of them is
    NaN."""
    compiled = jitney.compile(fn, dynamic=dynamic, recompile_limit=64, backend="eager")
    floats = (0.5, -0.25, -0.5, 2.5, 0.0, -0.0, math.inf, math.nan, -7.5, -math.inf, 1e59)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for a in floats:
            for n in (3, 4, -6, 7, -5):
                if fn is limits or (a != 0 and math.isfinite(a)):
                    given = torch.ones(2), a, n
                    assert repr(compiled(*given)) == repr(fn(*given))


def test_a_best_loss_that_becomes_infinite_again() -> None:
    """It was below infinity in the call that was captured with a symbol."""

    def step(loss: torch.Tensor, best: float) -> Any:
        return loss * 2, "none yet" if best == float("inf") else "some", best

    compiled = jitney.compile(step)
    for best in (math.inf, 0.5, 0.25, 0.125, math.inf, 0.0625):
        assert compiled(torch.ones(2), best)[1:] == step(torch.ones(2), best)[1:]


def test_the_size_of_a_changing_number() -> None:
    def scaled(x: torch.Tensor, v: float) -> torch.Tensor:
        return x * abs(v) + x / abs(v)  # of -0.0, too, it has no sign

    compiled = jitney.compile(scaled, fullgraph=True, recompile_limit=32)
    x = torch.randn(3)
    log.clear()  # it keeps so many, and forgets the first
    for v in (0.5, 0.25, 3.5, 7.0, 11.0, 0.75, 2.5, 9.5):
        torch.testing.assert_close(compiled(x, v), scaled(x, v))
    assert len(log.events("entry")) == 2
    for v in (-0.125, -7.0, -3.5, 0.0, -0.0, math.inf, -math.inf, math.nan):
        torch.testing.assert_close(compiled(x, v), scaled(x, v), equal_nan=True)
