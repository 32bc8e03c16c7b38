"""Casts between dtypes, lane broadcasts, and the shuffles that reductions need."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.ssa import (
    UNSIGNED,
    Ssa,
    bits,
    constant,
    intrinsic_suffix,
    llvm_type,
    vector_of,
)
from jitney.kernels.llvm.text import FunctionText

#: The one cast from a float to fewer than 32 bits that eager makes by way of 64.
_BY_LONG = (torch.float64, torch.uint8)
#: Stored narrow, computed in float32.
HALVES = frozenset((torch.bfloat16, torch.float16))


def broadcast(text: FunctionText, value: Ssa, lanes: int) -> Ssa:
    """A scalar in every lane; a vector of that many lanes as it is."""
    if value.lanes == lanes:
        return value
    if not value.name.startswith("%"):
        element = llvm_type(value.dtype)
        return Ssa(f"splat ({element} {value.name})", value.dtype, lanes)
    vector = llvm_type(value.dtype, lanes)
    first = text.pure(f"insertelement {vector} poison, {value.typed}, i64 0")
    name = text.pure(
        f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer"
    )
    return Ssa(name, value.dtype, lanes)


def match_lanes(text: FunctionText, values: list[Ssa]) -> list[Ssa]:
    """All of them broadcast to the widest."""
    lanes = max(v.lanes for v in values)
    return [broadcast(text, v, lanes) for v in values]


def lane(text: FunctionText, value: Ssa, position: int | str) -> Ssa:
    """One element as a scalar."""
    return Ssa(text.pure(f"extractelement {value.typed}, i64 {position}"), value.dtype)


def shuffle(text: FunctionText, a: Ssa, b: Ssa | None, picks: list[int]) -> Ssa:
    """The lanes ``picks`` of a (then b), as one vector."""
    second = b.name if b is not None else "poison"
    order = ", ".join(f"i32 {p}" for p in picks)
    name = text.pure(f"shufflevector {a.typed}, {a.type} {second}, <{len(picks)} x i32> <{order}>")
    return Ssa(name, a.dtype, len(picks))


def cast(text: FunctionText, value: Ssa, dtype: torch.dtype) -> Ssa:
    """As ``Tensor.to``: float to int truncates (8 and 16 bits through 32, but for `_BY_LONG`, as
    eager's compiler does), to bool is ``!= 0``, to bfloat16 rounds to nearest even."""
    source = value.dtype
    if source == dtype:
        return value
    if source in HALVES:
        return cast(text, widen(text, value), dtype)
    if dtype in HALVES:
        return narrow(text, cast(text, value, torch.float32), dtype)
    if dtype == torch.bool:
        test = "fcmp une" if source.is_floating_point else "icmp ne"
        return _unary(
            text, f"{test} {value.typed}, {constant(0, source, value.lanes).name}", value, dtype
        )
    if source.is_floating_point:
        return _from_float(text, value, dtype)
    if dtype.is_floating_point:
        code = "uitofp" if source in UNSIGNED else "sitofp"
    elif source == torch.bool or bits(dtype) > bits(source):
        code = "zext" if source in UNSIGNED else "sext"
    elif bits(dtype) < bits(source):
        code = "trunc"
    else:
        return Ssa(value.name, dtype, value.lanes)
    return _unary(text, f"{code} {value.typed} to {llvm_type(dtype, value.lanes)}", value, dtype)


def _from_float(text: FunctionText, value: Ssa, dtype: torch.dtype) -> Ssa:
    if dtype.is_floating_point:
        code = "fpext" if bits(dtype) > bits(value.dtype) else "fptrunc"
    elif bits(dtype) < 32:
        wide = torch.int64 if (value.dtype, dtype) == _BY_LONG else torch.int32
        return cast(text, _from_float(text, value, wide), dtype)
    elif dtype in UNSIGNED:
        return cast(text, _from_float(text, value, torch.int64), dtype)
    else:
        code = "fptosi"
    return _unary(text, f"{code} {value.typed} to {llvm_type(dtype, value.lanes)}", value, dtype)


def widen(text: FunctionText, value: Ssa) -> Ssa:
    """A half-precision value as float32, exactly."""
    wide = llvm_type(torch.float32, value.lanes)
    if value.dtype == torch.float16:
        return _unary(text, f"fpext {value.typed} to {wide}", value, torch.float32)
    integer = llvm_type(torch.int32, value.lanes)
    grown = text.pure(f"zext {value.typed} to {integer}")
    shifted = text.pure(f"shl {integer} {grown}, {constant(16, torch.int32, value.lanes).name}")
    return _unary(text, f"bitcast {integer} {shifted} to {wide}", value, torch.float32)


def narrow(text: FunctionText, value: Ssa, dtype: torch.dtype) -> Ssa:
    """A float32 rounded to nearest even; any NaN becomes bfloat16's quiet NaN."""
    lanes = value.lanes
    if dtype == torch.float16:
        return _unary(text, f"fptrunc {value.typed} to {llvm_type(dtype, lanes)}", value, dtype)
    if text.isa.bf16 and lanes >= 8:
        small = vector_of("bfloat", lanes)
        rounded = text.pure(f"fptrunc {value.typed} to {small}")
        return _unary(text, f"bitcast {small} {rounded} to {llvm_type(dtype, lanes)}", value, dtype)
    integer = llvm_type(torch.int32, lanes)

    def number(x: int) -> str:
        return constant(x, torch.int32, lanes).name

    whole = text.pure(f"bitcast {value.typed} to {integer}")
    high = text.pure(f"lshr {integer} {whole}, {number(16)}")
    odd = text.pure(f"and {integer} {high}, {number(1)}")
    bias = text.pure(f"add {integer} {odd}, {number(0x7FFF)}")
    biased = text.pure(f"add {integer} {whole}, {bias}")
    rounded = text.pure(f"lshr {integer} {biased}, {number(16)}")
    test = text.pure(f"fcmp uno {value.typed}, {value.name}")
    kept = text.pure(
        f"select {vector_of('i1', lanes)} {test}, {integer} {number(0x7FC0)}, {integer} {rounded}"
    )
    return _unary(text, f"trunc {integer} {kept} to {llvm_type(dtype, lanes)}", value, dtype)


def bitcast(text: FunctionText, value: Ssa, dtype: torch.dtype) -> Ssa:
    """The same bits as another dtype of equal size (``Tensor.view(dtype)``)."""
    if llvm_type(value.dtype) == llvm_type(dtype):
        return Ssa(value.name, dtype, value.lanes)
    if value.dtype == torch.bool:
        return cast(text, cast(text, value, torch.uint8), dtype)
    if dtype == torch.bool:
        return cast(text, value, torch.bool)
    return _unary(text, f"bitcast {value.typed} to {llvm_type(dtype, value.lanes)}", value, dtype)


def suffix(value: Ssa) -> str:
    """How overloaded intrinsics spell its type."""
    return intrinsic_suffix(value.dtype, value.lanes)


def _unary(text: FunctionText, code: str, like: Ssa, dtype: torch.dtype) -> Ssa:
    return Ssa(text.pure(code), dtype, like.lanes)
