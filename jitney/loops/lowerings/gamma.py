"""Derivatives of the logarithm of the gamma function."""

from __future__ import annotations

import math

import torch

from jitney.loops.ir import Expr
from jitney.loops.lowerings.elementwise import elementwise
from jitney.loops.lowerings.expressions import add, apply, const, div, mul, sub, where
from jitney.loops.lowerings.registry import Refused

aten = torch.ops.aten


@elementwise(aten.polygamma)
def polygamma(order: int, x: Expr) -> Expr:
    """The first and the second derivative; higher ones need Hurwitz's zeta function."""
    if order > 1 or not x.dtype.is_floating_point:
        raise Refused("a derivative of high order")
    return apply("digamma", x) if order == 0 else trigamma(x)


def trigamma(x: Expr) -> Expr:
    """Below 1/2 by reflection, then six steps up, then the asymptotic series (Abramowitz and
    Stegun 6.4.7, 6.4.6 and 6.4.12)."""

    def number(value: float) -> Expr:
        return const(value, x.dtype)

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
