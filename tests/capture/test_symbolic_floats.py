"""Floats that are symbols: each step is rounded where Python rounds it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney


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
