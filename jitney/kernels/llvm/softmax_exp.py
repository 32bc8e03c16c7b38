"""The exponential a softmax needs: arguments at most 0, results that may flush to 0."""

from __future__ import annotations

import math

import torch

from jitney.kernels.llvm.operations import emit_op, select
from jitney.kernels.llvm.ssa import Ssa, constant, llvm_type
from jitney.kernels.llvm.text import FunctionText

#: Minimax coefficients of 2^f for |f| <= 1/2, relative error 2e-9 (fitted by Lawson's iteration).
_POWERS = (
    1.0,
    0.6931471824645996,
    0.24022646248340607,
    0.05550328642129898,
    0.009618489071726799,
    0.0013399930903688073,
    0.00015345810970757157,
)
_LOWEST = -87.0
#: Added to a small number it leaves the nearest integer in the low bits.
_SHIFT = 1.5 * 2.0**23


def exp_of_nonpositive(text: FunctionText, a: Ssa) -> Ssa:
    """``e^a`` for ``a <= 0`` (or NaN): 0 below -87, where what is added to a total of at least 1
    no longer counts. Half the work of the general function in float32, itself in float64."""
    if a.dtype != torch.float32:
        return emit_op(text, "exp", [a], a.dtype)
    lowest = constant(_LOWEST, a.dtype, a.lanes)
    small = Ssa(text.pure(f"fcmp olt {a.typed}, {lowest.name}"), torch.bool, a.lanes)
    clamped = select(text, small, lowest, a)
    scale = constant(math.log2(math.e), a.dtype, a.lanes)
    shift = constant(_SHIFT, a.dtype, a.lanes)
    shifted = emit_op(text, "fma", [clamped, scale, shift], a.dtype)
    whole = emit_op(text, "sub", [shifted, shift], a.dtype)
    rest = emit_op(text, "fma", [clamped, scale, emit_op(text, "neg", [whole], a.dtype)], a.dtype)
    power = constant(_POWERS[-1], a.dtype, a.lanes)
    for coefficient in reversed(_POWERS[:-1]):
        power = emit_op(
            text, "fma", [power, rest, constant(coefficient, a.dtype, a.lanes)], a.dtype
        )
    result = emit_op(text, "mul", [power, _power_of_two(text, shifted)], a.dtype)
    return select(text, small, constant(0.0, a.dtype, a.lanes), result)


def _power_of_two(text: FunctionText, shifted: Ssa) -> Ssa:
    """``2^n`` for ``shifted = n + _SHIFT``: n sits in the low bits, from where it is moved to
    the exponent. (A NaN gives some number, and the product with a NaN is NaN.)"""
    words = llvm_type(torch.int32, shifted.lanes)
    raw = text.pure(f"bitcast {shifted.typed} to {words}")
    biased = text.pure(f"add {words} {raw}, {constant(127, torch.int32, shifted.lanes).name}")
    moved = text.pure(f"shl {words} {biased}, {constant(23, torch.int32, shifted.lanes).name}")
    name = text.pure(f"bitcast {words} {moved} to {shifted.type}")
    return Ssa(name, shifted.dtype, shifted.lanes)
