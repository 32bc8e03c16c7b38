"""Hyperbolic functions whose usual kernels overflow before their results do."""

from __future__ import annotations

import math

import torch

from jitney.loops.ir import Expr
from jitney.loops.lowerings.activations import like
from jitney.loops.lowerings.elementwise import elementwise
from jitney.loops.lowerings.expressions import add, apply, mul, where

aten = torch.ops.aten


@elementwise(aten.sinh)
def sinh(x: Expr) -> Expr:
    """Beyond 88, where float32's ``exp`` is about to overflow, half an exponential."""
    size = apply("abs", x)
    near_overflow = apply("copysign", _half_exp(size), x)
    return where(apply("gt", size, like(88.0, x)), near_overflow, apply("sinh", x))


@elementwise(aten.cosh)
def cosh(x: Expr) -> Expr:
    """Beyond 88, where float32's ``exp`` is about to overflow, half an exponential."""
    size = apply("abs", x)
    return where(apply("gt", size, like(88.0, x)), _half_exp(size), apply("cosh", x))


def _half_exp(x: Expr) -> Expr:
    """``exp(x) / 2`` without an infinity on the way."""
    root = apply("exp", mul(like(0.5, x), x))
    return mul(mul(like(0.5, x), root), root)


@elementwise(aten.asinh)
def asinh(x: Expr) -> Expr:
    """Beyond 1e17, where a square may be infinite, ``log(2 * |x|)`` with the sign of ``x``."""
    size = apply("abs", x)
    large = apply("copysign", _log_of_double(size), x)  # of squares that would be infinite
    return where(apply("gt", size, like(1e17, x)), large, apply("asinh", x))


@elementwise(aten.acosh)
def acosh(x: Expr) -> Expr:
    """Beyond 1e17, where a square may be infinite, ``log(2 * x)``."""
    return where(apply("gt", x, like(1e17, x)), _log_of_double(x), apply("acosh", x))


def _log_of_double(x: Expr) -> Expr:
    return add(apply("log", x), like(math.log(2), x))
