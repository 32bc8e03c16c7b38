"""The inverse of the error function."""

from __future__ import annotations

import math
from functools import partial

import torch

from jitney.loops.ir import Expr
from jitney.loops.lowerings.elementwise import elementwise
from jitney.loops.lowerings.expressions import add, apply, const, div, mul, sub, where

aten = torch.ops.aten


@elementwise(aten.erfinv)
def erfinv(x: Expr) -> Expr:
    """Winitzki's approximation (relative error 2e-3), then Halley's steps, each of which cubes the
    error; above a half on 1 - erf, where erf itself has no digits left."""

    number = partial(const, dtype=x.dtype)

    one, size = number(1), apply("abs", x)
    found = _approximation(size)
    for _ in range(3 if x.dtype is torch.float64 else 2):
        near = sub(apply("erf", found), size)
        far = sub(sub(one, size), apply("erfc", found))
        slope = apply("exp", apply("neg", mul(found, found)))
        scaled = div(where(apply("lt", size, number(0.5)), near, far), slope)
        step = mul(scaled, number(math.sqrt(math.pi) / 2))
        found = sub(found, div(step, add(one, mul(found, step))))
    found = where(apply("eq", size, one), number(math.inf), found)
    return apply("copysign", found, x)


def _approximation(size: Expr) -> Expr:
    """Of sizes up to 1 (S. Winitzki, 2008: a handy approximation for the error function and its
    inverse); NaN above."""

    number = partial(const, dtype=size.dtype)

    logarithm = apply("log1p", apply("neg", mul(size, size)))
    half = add(number(2 / (math.pi * 0.147)), mul(logarithm, number(0.5)))
    root = apply("sqrt", sub(mul(half, half), div(logarithm, number(0.147))))
    # The difference of root and half, without the cancellation.
    return apply("sqrt", div(div(logarithm, number(-0.147)), add(root, half)))
