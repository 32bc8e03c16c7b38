"""Functions taken from Sleef, which libtorch_cpu.so exports and eager itself calls, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitney.kernels.llvm.conversions import broadcast, lane, shuffle
from jitney.kernels.llvm.ssa import Ssa, bits, llvm_type
from jitney.kernels.llvm.text import FunctionText

#: Opcode -> Sleef's name with the accuracy eager uses ("u10": 1.0 ulp).
SLEEF = {
    "exp": "exp{}_u10",
    "exp2": "exp2{}_u10",
    "expm1": "expm1{}_u10",
    "log": "log{}_u10",
    "log2": "log2{}_u10",
    "log10": "log10{}_u10",
    "log1p": "log1p{}_u10",
    "sin": "sin{}_u10",
    "cos": "cos{}_u10",
    "tan": "tan{}_u10",
    "asin": "asin{}_u10",
    "acos": "acos{}_u10",
    "atan": "atan{}_u10",
    "sinh": "sinh{}_u10",
    "cosh": "cosh{}_u10",
    "tanh": "tanh{}_u10",
    "asinh": "asinh{}_u10",
    "acosh": "acosh{}_u10",
    "atanh": "atanh{}_u10",
    "erf": "erf{}_u10",
    "erfc": "erfc{}_u15",
    "lgamma": "lgamma{}_u10",
    "pow": "pow{}_u10",
    "atan2": "atan2{}_u10",
    "hypot": "hypot{}_u05",
    "fmod": "fmod{}",
    "nextafter": "nextafter{}",
}


def library_call(text: FunctionText, op: str, args: list[Ssa]) -> Ssa:
    """``op`` of float32 or float64 operands of equal lanes; scalars go through one vector."""
    dtype, lanes = args[0].dtype, args[0].lanes
    width = max(text.isa.bits, 128) // bits(dtype)
    name = "Sleef_" + SLEEF[op].format(("f" if dtype == torch.float32 else "d") + str(width))
    if not lanes:
        return lane(text, _call(text, name, [broadcast(text, a, width) for a in args]), 0)
    if lanes < width:
        pad = [k % lanes for k in range(width)]
        whole = _call(text, name, [shuffle(text, a, None, pad) for a in args])
        return shuffle(text, whole, None, list(range(lanes)))
    parts = [
        _call(text, name, [shuffle(text, a, None, list(range(k, k + width))) for a in args])
        if lanes > width
        else _call(text, name, args)
        for k in range(0, lanes, width)
    ]
    return concatenate(text, parts)


def otherwise(text: FunctionText, test: Ssa, value: Ssa, rare: Callable[[], Ssa]) -> Ssa:
    """``value``, or ``rare()`` in every lane as soon as ``test`` holds in one."""
    some = test.name
    if test.lanes:
        some = text.call("i1", f"llvm.vector.reduce.or.v{test.lanes}i1", test.typed)
    place = text.allocate(bits(value.dtype) // 8 * max(value.lanes, 1))
    text.do(f"store {value.typed}, ptr {place}")
    with text.when(some):
        text.do(f"store {rare().typed}, ptr {place}")
    return Ssa(text.emit(f"load {value.type}, ptr {place}"), value.dtype, value.lanes)


def concatenate(text: FunctionText, parts: list[Ssa]) -> Ssa:
    """Vectors of equal, power-of-two count, side by side."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].lanes))
        parts = [shuffle(text, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _call(text: FunctionText, name: str, args: list[Ssa]) -> Ssa:
    returns = llvm_type(args[0].dtype, args[0].lanes)
    result = text.call(returns, name, *(a.typed for a in args))
    return Ssa(result, args[0].dtype, args[0].lanes)
