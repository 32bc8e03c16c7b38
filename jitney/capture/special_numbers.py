"""Arithmetic of a symbol with a zero, an infinity or NaN. Sympy has no -0.0, and simplifies ``0 *
x`` to 0 and ``x + 0`` to x, which is not what floats do. Symbols themselves are finite."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.symbols import SYMBOLS, concrete

_ADD = (operator.add, operator.iadd)
_SUBTRACT = (operator.sub, operator.isub)
_MULTIPLY = (operator.mul, operator.imul)
_DIVIDE = (operator.truediv, operator.itruediv)
_ARITHMETIC = (*_ADD, *_SUBTRACT, *_MULTIPLY, *_DIVIDE)
_COMPARE = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat)


def special_result(function: Any, values: Sequence[Any]) -> float | bool | None:
    """What ``function`` of a symbol and a special number is where sympy would not say it, else
    None. What it takes is assumed: on which side of zero the symbol is, or what it is."""
    if len(values) != 2 or function not in (*_ARITHMETIC, *_COMPARE):
        return None
    kinds = set(map(type, values))
    if not kinds.intersection((float, torch.SymFloat)) or not kinds.issubset(_NUMBERS):
        return None
    left, right = map(_known, values)
    symbols = [v for v in (left, right) if isinstance(v, SYMBOLS)]
    if not symbols and kinds.intersection(SYMBOLS):
        return function(left, right)
    if len(symbols) != 1:
        return None
    number = right if symbols[0] is left else left
    if number == 0:
        if function in (*_ADD, *_SUBTRACT):
            return _sum_with_zero(function, left, right)
        if function in _COMPARE or function in _DIVIDE and not (number is left and _signed(left)):
            return None
    elif math.isfinite(number) or (function in _COMPARE and not math.isnan(number)):
        return None
    return _of_signs(function, left, right)


def _known(value: Any) -> Any:
    """A symbol that is a constant as that number."""
    number = torch_api.constant_of(value) if isinstance(value, SYMBOLS) else None
    return value if number is None else number


def _signed(zero: Any) -> bool:
    return math.copysign(1.0, zero) < 0


def _sum_with_zero(function: Any, left: Any, right: Any) -> float | None:
    """``left + right`` or ``left - right``, of which one is a zero: where the other is one too."""
    first = isinstance(left, SYMBOLS)
    symbol, zero = (left, right) if first else (right, left)
    negative = _signed(zero) ^ (first and function in _SUBTRACT)
    whole = isinstance(symbol, torch.SymInt) and (first or function in _ADD)
    if negative or whole or symbol != 0:
        return None
    return function(concrete(left), concrete(right))


def _of_signs(function: Any, left: Any, right: Any) -> float | bool:
    """What depends on no more of a symbol than its sign."""
    first = isinstance(left, SYMBOLS)
    symbol, number = (left, right) if first else (right, left)
    if function in (*_MULTIPLY, *_DIVIDE) and not math.isnan(number):
        unit = 1.0 if symbol > 0 else -1.0 if symbol < 0 else concrete(symbol)
    else:
        unit = 1.0
    return function(unit, number) if first else function(number, unit)
