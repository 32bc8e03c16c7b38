"""Divisions and remainders, rounded where eager's kernels round."""

from __future__ import annotations

import torch

from jitney.loops.ir import Const, Expr
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.elementwise import elementwise, fake_of, rounded_to
from jitney.loops.lowerings.expressions import HALF, apply, cast, const, div, mul, sub, where
from jitney.loops.lowerings.registry import Refused

aten = torch.ops.aten


def _checked_divisor(x: Expr, y: Expr) -> None:
    """Refuses an integer division whose divisor could be zero: eager raises there."""
    if not x.dtype.is_floating_point and not (isinstance(y, Const) and y.value not in (0, -1)):
        raise Refused("an integer division by zero must raise eager's error")


@elementwise(aten.div, aten.true_divide, wide_on_cpu="other", with_builder=True)
def divided(b: Builder, x: Expr, y: Expr, rounding_mode: str | None = None) -> Expr:
    """``x / y``, or rounded down or to zero. Refused for integers that are rounded, unless ``y`` is
    a literal other than 0 and -1."""
    if rounding_mode is None:
        return _quotient(b, x, y)
    _checked_divisor(x, y)
    if rounding_mode == "floor":
        return _floored(b, x, y)
    if not x.dtype.is_floating_point:
        return apply("truncdiv", x, y)
    return apply("trunc", _rounded(b, _quotient(b, x, y), y))


@elementwise(aten.floor_divide, wide_on_cpu="other", with_builder=True)
def floor_divided(b: Builder, x: Expr, y: Expr) -> Expr:
    """The quotient rounded down (`_floored`). Refused for integers as `divided`."""
    _checked_divisor(x, y)
    if not isinstance(fake_of(b.node.args[0]), torch.Tensor):
        x = rounded_to(b.fake.dtype, x)  # eager makes a tensor of the number
    return _floored(b, x, y)


@elementwise(aten.remainder, narrow_on=("cpu", "cuda"))
def remainder(x: Expr, y: Expr) -> Expr:
    """Python's ``%``: the sign is that of ``y``. Refused for integers as `divided`."""
    _checked_divisor(x, y)
    return apply("remainder", x, y)


@elementwise(aten.fmod, narrow_on=("cpu", "cuda"))
def fmod(x: Expr, y: Expr) -> Expr:
    """C's ``fmod``: the sign is that of ``x``. Refused for integers as `divided`."""
    _checked_divisor(x, y)
    return apply("fmod", x, y)


def _quotient(b: Builder, x: Expr, y: Expr) -> Expr:
    """``x / y``; on a GPU eager multiplies by the inverse of a number."""
    if b.target.kind != "cpu" and isinstance(
        fake_of(b.node.args[1]), torch.SymFloat | torch.SymInt
    ):
        return mul(x, div(const(1.0, y.dtype), y))
    if b.target.kind == "cpu" or not isinstance(y, Const) or y.value in (0, 1):
        return div(x, y)
    inverse = torch.ones((), dtype=y.dtype) / y.value
    return mul(x, const(inverse.item(), y.dtype))


def _rounded(b: Builder, value: Expr, y: Expr) -> Expr:
    """A step of a division of 16-bit tensors, whose steps eager rounds; by a number it does not."""
    dtype = b.fake.dtype
    if dtype not in HALF or _is_number(b, y):
        return value
    return cast(cast(value, dtype), value.dtype)


def _is_number(b: Builder, y: Expr) -> bool:
    """Whether eager divides by a number: on a CPU also by the element of a tensor of one."""
    divisor = fake_of(b.node.args[1])
    if not isinstance(divisor, torch.Tensor):
        return True
    if b.target.kind != "cpu":
        return isinstance(y, Const)
    return all(type(size) is int and size == 1 for size in divisor.shape)


def _floored(b: Builder, x: Expr, y: Expr) -> Expr:
    """The quotient rounded down; steps of its own (c10's ``div_floor_floating``) where eager rounds
    in between: for 16-bit tensors on a CPU."""
    if b.target.kind != "cpu" or b.fake.dtype not in HALF or _is_number(b, y):
        return apply("floordiv", x, y)
    zero, half, one = (const(value, x.dtype) for value in (0.0, 0.5, 1.0))
    rest = apply("fmod", x, y)
    whole = _rounded(b, div(_rounded(b, sub(x, rest), y), y), y)
    unlike = apply("ne", apply("lt", y, zero), apply("lt", rest, zero))
    below = apply("and", apply("ne", rest, zero), unlike)
    whole = where(below, _rounded(b, sub(whole, one), y), whole)
    floor = apply("floor", whole)
    short = apply("gt", _rounded(b, sub(whole, floor), y), half)
    floor = where(short, _rounded(b, apply("add", floor, one), y), floor)
    quotient = _rounded(b, div(x, y), y)
    floor = where(apply("eq", whole, zero), apply("copysign", zero, quotient), floor)
    return where(apply("eq", y, zero), quotient, floor)
