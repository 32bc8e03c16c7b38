"""SSA values and their types: a torch dtype and a number of lanes, printed as LLVM text."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

#: dtype -> LLVM element type in a register. bfloat16 travels as its bits.
ELEMENT = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "i16",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.int16: "i16",
    torch.uint16: "i16",
    torch.int32: "i32",
    torch.uint32: "i32",
    torch.int64: "i64",
    torch.uint64: "i64",
}

UNSIGNED = frozenset((torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64))


@dataclass(frozen=True, slots=True)
class Ssa:
    """A value in a register: ``name`` is "%x3" or a literal; ``lanes`` 0 is a scalar."""

    name: str
    dtype: torch.dtype
    lanes: int = 0

    @property
    def type(self) -> str:
        """Its LLVM type."""
        return llvm_type(self.dtype, self.lanes)

    @property
    def typed(self) -> str:
        """Type and name, as an operand is written."""
        return f"{llvm_type(self.dtype, self.lanes)} {self.name}"


def llvm_type(dtype: torch.dtype, lanes: int = 0) -> str:
    """The register type of ``lanes`` elements (0: a scalar)."""
    return vector_of(ELEMENT[dtype], lanes)


def vector_of(element: str, lanes: int) -> str:
    """``element`` itself, or a vector of it."""
    return f"<{lanes} x {element}>" if lanes else element


def memory_type(dtype: torch.dtype, lanes: int = 0) -> str:
    """As `llvm_type`, as stored: a bool is a byte."""
    return vector_of("i8", lanes) if dtype == torch.bool else llvm_type(dtype, lanes)


def is_float(dtype: torch.dtype) -> bool:
    """Whether it is a floating-point dtype."""
    return dtype.is_floating_point


def bits(dtype: torch.dtype) -> int:
    """Bits of an element in memory."""
    return dtype.itemsize * 8


def intrinsic_suffix(dtype: torch.dtype, lanes: int) -> str:
    """``v16f32``, ``f64``, ``v8i32``: how overloaded intrinsics spell the type."""
    element = ELEMENT[dtype]
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
    return f"v{lanes}{short}" if lanes else short


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """The scalar constant as LLVM writes it; a float is rounded to ``dtype`` first."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype == torch.bfloat16:
        return str(_bfloat16_bits(float(value)))
    if not dtype.is_floating_point:
        wrapped = int(value) & ((1 << bits(dtype)) - 1)
        return str(wrapped - (1 << bits(dtype)) if wrapped >> (bits(dtype) - 1) else wrapped)
    if dtype == torch.float16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', _half(float(value))))[0]:04X}"
    if dtype == torch.float32:
        value = _single(float(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"


def constant(value: bool | int | float, dtype: torch.dtype, lanes: int = 0) -> Ssa:
    """A literal, splat over ``lanes``."""
    text = literal(value, dtype)
    return Ssa(f"splat ({ELEMENT[dtype]} {text})" if lanes else text, dtype, lanes)


def iota(lanes: int, dtype: torch.dtype = torch.int64, step: int = 1) -> Ssa:
    """The literal vector ``0, step, 2 * step, …``."""
    element = ELEMENT[dtype]
    return Ssa("<" + ", ".join(f"{element} {k * step}" for k in range(lanes)) + ">", dtype, lanes)


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _half(value: float) -> float:
    try:
        struct.pack("<e", value)
        return value
    except OverflowError:
        return math.copysign(math.inf, value)


def _bfloat16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    whole = struct.unpack("<I", struct.pack("<f", _single(value)))[0]
    rounded = (whole + 0x7FFF + ((whole >> 16) & 1)) >> 16
    return rounded - (1 << 16) if rounded >> 15 else rounded
