"""Derivatives of the logarithm of the gamma function."""

from __future__ import annotations

import math
from functools import partial

import torch

from jitney.loops.ir import Expr
from jitney.loops.lowerings.elementwise import elementwise
from jitney.loops.lowerings.expressions import add, apply, const, div, mul, sub, where
from jitney.loops.lowerings.registry import Refused

aten = torch.ops.aten

#: |B(2k)| / 2k of Bernoulli's numbers, whose signs alternate.
_SERIES = (1 / 12, 1 / 120, 1 / 252, 1 / 240, 1 / 132, 691 / 32760, 1 / 12)


@elementwise(aten.polygamma)
def polygamma(order: int, x: Expr) -> Expr:
    """The first and the second derivative; higher ones need Hurwitz's zeta function."""
    if order > 1 or not x.dtype.is_floating_point:
        raise Refused("a derivative of high order")
    return digamma(x) if order == 0 else trigamma(x)


@elementwise(aten.digamma)
def digamma(x: Expr) -> Expr:
    """Below 0 by reflection, then ten steps up at once, then the asymptotic series (Abramowitz and
    Stegun 6.3.7, 6.3.6 and 6.3.18)."""

    number = partial(const, dtype=x.dtype)

    one, ten, zero = number(1), number(10), number(0)
    below = apply("lt", x, zero)
    # Distance to the next pole, exact, of at most a half: there the tangent is too.
    angle = mul(sub(x, apply("round", x)), number(math.pi))
    mirror = div(number(math.pi), apply("tan", angle))
    mirror = where(apply("eq", x, apply("round", x)), number(math.nan), mirror)
    start = where(below, sub(one, x), x)
    small = apply("lt", start, ten)
    steps: Expr = div(one, start)  # of a zero: an infinity of its sign
    for step in range(1, 10):
        steps = add(steps, div(one, add(start, number(step))))
    at = where(small, add(start, ten), start)
    square = div(one, mul(at, at))
    series: Expr = number(_SERIES[-1])
    for factor in reversed(_SERIES[:-1]):
        series = sub(number(factor), mul(square, series))
    total = sub(sub(apply("log", at), div(number(0.5), at)), mul(square, series))
    total = sub(total, where(small, steps, zero))
    return where(below, sub(total, mirror), total)


def trigamma(x: Expr) -> Expr:
    """Below 1/2 by reflection, then six steps up, then the asymptotic series (Abramowitz and
    Stegun 6.4.7, 6.4.6 and 6.4.12)."""

    number = partial(const, dtype=x.dtype)

    one, reflected = number(1), apply("lt", x, number(0.5))
    sine = apply("sin", mul(x, number(math.pi)))
    mirror = div(number(math.pi**2), mul(sine, sine))
    at = where(reflected, sub(one, x), x)
    total: Expr = number(0)
    for _ in range(6):
        total = add(total, div(one, mul(at, at)))
        at = add(at, one)
    square = div(one, mul(at, at))
    series = sub(number(1 / 30), mul(square, number(1 / 42)))
    series = mul(square, sub(number(1 / 6), mul(square, series)))
    series = add(add(one, div(number(0.5), at)), series)
    total = add(total, div(series, at))
    return where(reflected, sub(mirror, total), total)
