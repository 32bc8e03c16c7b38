"""Elementary functions as polynomials on float32 values, inlined where they are used.

Coefficients are weighted Chebyshev fits (Lawson iteration) whose own error is below 0.15 ulp.
Special values come out as eager's: NaN stays NaN, exp(-inf) is 0, log of a negative is NaN, tanh
and erf keep the sign of zero, and denormals are neither flushed nor lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from jitney.kernels.llvm.library_math import library_call, otherwise
from jitney.kernels.llvm.ssa import Ssa, constant, llvm_type, vector_of
from jitney.kernels.llvm.text import FunctionText

_LOG2E = math.log2(math.e)
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06  # high part: 15 bits, exact
# (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2
_EXP = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368954062461853, 0.0013950599823147058)
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (0.33333316445350647, -0.25000810623168945, 0.2000228613615036, -0.16624553501605988,
        0.14181196689605713, -0.13128767907619476, 0.12881621718406677,
        -0.07859545946121216)  # fmt: skip
# erf(sqrt(z)) / sqrt(z) for z <= 3.95^2, numerator and denominator
_ERF = (1.128379225730896, 0.1851695030927658, 0.05427483841776848, 0.003843391314148903,
        0.0003779378021135926, 4.640444331016624e-06, -1.2967126927776462e-08)  # fmt: skip
_ERF_BELOW = (1.0, 0.497435599565506, 0.11391119658946991, 0.015443761833012104,
              0.0013040682533755898, 6.269261939451098e-05)  # fmt: skip
# (sin(sqrt(z)) - sqrt(z)) / sqrt(z)^3 and (cos(sqrt(z)) - 1 + z / 2) / z^2, z <= (pi / 4)^2
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.00019839327433146536, 2.71823728326126e-06)
_COS = (0.0416666679084301, -0.0013888883404433727, 2.479951217537746e-05, -2.720954626056482e-07)
# pi / 2 as three floats; n times them is subtracted by fused multiply-adds, good to n of 15 bits
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_FAR = 32768.0  # sizes from which the library reduces the argument


class _Float:
    """Arithmetic on float32 values of one width, briefly spelt."""

    def __init__(self, text: FunctionText, lanes: int) -> None:
        self.text, self.lanes = text, lanes
        self.kind = llvm_type(torch.float32, lanes)
        self.integer = llvm_type(torch.int32, lanes)
        self.bool = vector_of("i1", lanes)
        self._suffix = f"v{lanes}f32" if lanes else "f32"

    def number(self, value: float) -> str:
        return constant(value, torch.float32, self.lanes).name

    def whole(self, value: int) -> str:
        return constant(value, torch.int32, self.lanes).name

    def _float(self, code: str, a: str, b: str) -> str:
        return self.text.pure(f"{code} {self.kind} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self._float("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self._float("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self._float("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        return self._float("fdiv", a, b)

    def fma(self, a: str, b: str, c: str) -> str:
        typed = [f"{self.kind} {v}" for v in (a, b, c)]
        return self.text.call(self.kind, f"llvm.fma.{self._suffix}", *typed)

    def unary(self, name: str, a: str) -> str:
        return self.text.call(self.kind, f"llvm.{name}.{self._suffix}", f"{self.kind} {a}")

    def copysign(self, a: str, sign: str) -> str:
        typed = [f"{self.kind} {v}" for v in (a, sign)]
        return self.text.call(self.kind, f"llvm.copysign.{self._suffix}", *typed)

    def where(self, test: str, a: str, b: str, yes: str, no: str) -> str:
        """``yes`` where ``a test b``, else ``no``."""
        mask = self.text.pure(f"fcmp {test} {self.kind} {a}, {b}")
        return self.text.pure(f"select {self.bool} {mask}, {self.kind} {yes}, {self.kind} {no}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule, constant term first."""
        total = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.number(c))
        return total

    def int_op(self, code: str, a: str, b: str) -> str:
        return self.text.pure(f"{code} {self.integer} {a}, {b}")

    def bits(self, a: str) -> str:
        return self.text.pure(f"bitcast {self.kind} {a} to {self.integer}")

    def from_bits(self, a: str) -> str:
        return self.text.pure(f"bitcast {self.integer} {a} to {self.kind}")

    def to_int(self, a: str) -> str:
        return self.text.pure(f"fptosi {self.kind} {a} to {self.integer}")

    def to_float(self, a: str) -> str:
        return self.text.pure(f"sitofp {self.integer} {a} to {self.kind}")

    def power_of_two(self, n: str) -> str:
        """2^n of integers -126..127."""
        biased = self.int_op("add", n, self.whole(127))
        return self.from_bits(self.int_op("shl", biased, self.whole(23)))


def _reduced(f: _Float, x: str) -> tuple[str, str]:
    """``(n, r)`` with ``x = n ln 2 + r`` and ``|r| <= ln(2) / 2``; n is a float."""
    n = f.unary("roundeven", f.mul(x, f.number(_LOG2E)))
    r = f.fma(n, f.number(-_LN2_HIGH), x)
    return n, f.fma(n, f.number(-_LN2_LOW), r)


def _exp_minus_one_of_rest(f: _Float, r: str) -> str:
    return f.fma(f.mul(r, r), f.polynomial(r, _EXP), r)


def _scaled(f: _Float, value: str, n: str) -> str:
    """``value * 2^n``, right for results that overflow or are denormal."""
    if f.text.isa.masks and f.lanes == 16:
        typed = [f"{f.kind} {v}" for v in (value, n)]
        return f.text.call(
            f.kind, "llvm.x86.avx512.mask.scalef.ps.512", *typed, f"{f.kind} zeroinitializer",
            "i16 -1", "i32 4",
        )  # fmt: skip
    whole = f.to_int(n)
    half = f.int_op("ashr", whole, f.whole(1))
    rest = f.int_op("sub", whole, half)
    return f.mul(f.mul(value, f.power_of_two(half)), f.power_of_two(rest))


def _exp_name(f: _Float, x: str) -> str:
    low, high = f.number(-104.0), f.number(89.0)
    inside = f.where("olt", x, low, low, x)
    inside = f.where("ogt", inside, high, high, inside)
    n, r = _reduced(f, inside)
    return _scaled(f, f.add(_exp_minus_one_of_rest(f, r), f.number(1.0)), n)


def _expm1_name(f: _Float, x: str, low: float, high: float) -> str:
    """``exp(x) - 1`` of ``low <= x <= high`` (others are clamped; NaN stays)."""
    inside = f.where("olt", x, f.number(low), f.number(low), x)
    inside = f.where("ogt", inside, f.number(high), f.number(high), inside)
    n, r = _reduced(f, inside)
    scale = f.power_of_two(f.to_int(n))
    return f.fma(scale, _exp_minus_one_of_rest(f, r), f.sub(scale, f.number(1.0)))


def exp(text: FunctionText, a: Ssa) -> Ssa:
    """e^a, 1 ulp."""
    return Ssa(_exp_name(_Float(text, a.lanes), a.name), a.dtype, a.lanes)


def expm1(text: FunctionText, a: Ssa) -> Ssa:
    """e^a - 1 (2 ulp); -0 stays -0."""
    f = _Float(text, a.lanes)
    value = _expm1_name(f, a.name, -30.0, 88.0)
    # Beyond 88 the one does not matter, and exp knows how to overflow.
    value = f.where("ogt", a.name, f.number(87.0), _exp_name(f, a.name), value)
    tiny = f.unary("fabs", a.name)
    value = f.where("olt", tiny, f.number(1e-8), a.name, value)
    return Ssa(value, a.dtype, a.lanes)


def sigmoid(text: FunctionText, a: Ssa) -> Ssa:
    """1 / (1 + e^-a)."""
    f = _Float(text, a.lanes)
    negative = f.text.pure(f"fneg {a.typed}")
    one = f.number(1.0)
    return Ssa(f.div(one, f.add(_exp_name(f, negative), one)), a.dtype, a.lanes)


def log(text: FunctionText, a: Ssa) -> Ssa:
    """The natural logarithm, 1 ulp: mantissa in [sqrt(1/2), sqrt(2)), exponent apart."""
    f = _Float(text, a.lanes)
    x = a.name
    least = f.number(2.0**-126)
    normal = f.where("olt", x, least, f.mul(x, f.number(2.0**23)), x)
    shift = f.where("olt", x, least, f.number(-23.0), f.number(0.0))
    word = f.bits(normal)
    exponent = f.int_op("ashr", f.int_op("sub", word, f.whole(0x3F3504F3)), f.whole(23))
    mantissa = f.from_bits(f.int_op("sub", word, f.int_op("shl", exponent, f.whole(23))))
    e = f.add(f.to_float(exponent), shift)
    m = f.sub(mantissa, f.number(1.0))
    square = f.mul(m, m)
    tail = f.fma(f.mul(square, m), f.polynomial(m, _LOG), f.mul(e, f.number(_LN2_LOW)))
    tail = f.fma(square, f.number(-0.5), tail)
    result = f.fma(e, f.number(_LN2_HIGH), f.add(m, tail))
    result = f.where("oeq", x, f.number(math.inf), x, result)
    result = f.where("oeq", x, f.number(0.0), f.number(-math.inf), result)
    result = f.where("ult", x, f.number(0.0), f.number(math.nan), result)
    return Ssa(result, a.dtype, a.lanes)


def tanh(text: FunctionText, a: Ssa) -> Ssa:
    """``expm1(2|a|) / (expm1(2|a|) + 2)`` with a's sign, 2 ulp."""
    f = _Float(text, a.lanes)
    size = f.unary("fabs", a.name)
    grown = _expm1_name(f, f.mul(size, f.number(2.0)), 0.0, 20.0)
    ratio = f.div(grown, f.add(grown, f.number(2.0)))
    return Ssa(f.copysign(ratio, a.name), a.dtype, a.lanes)


def erf(text: FunctionText, a: Ssa) -> Ssa:
    """A rational function of a^2 up to 3.95, where erf rounds to 1; 5 ulp."""
    f = _Float(text, a.lanes)
    size = f.unary("fabs", a.name)
    limit, one = f.number(3.95), f.number(1.0)
    inside = f.where("ogt", size, limit, limit, size)
    z = f.mul(inside, inside)
    above = f.mul(inside, f.polynomial(z, _ERF))
    ratio = f.div(above, f.polynomial(z, _ERF_BELOW))
    ratio = f.where("ogt", ratio, one, one, ratio)
    return Ssa(f.copysign(ratio, a.name), a.dtype, a.lanes)


def _wave(text: FunctionText, a: Ssa, op: str) -> Ssa:
    """sin or cos: quarter turns off, a polynomial each, the quadrant picks one and its sign.

    The few sizes beyond `_FAR` go to the library, behind a branch that is hardly ever taken.
    """
    f = _Float(text, a.lanes)
    n = f.unary("roundeven", f.mul(a.name, f.number(2 / math.pi)))
    r = a.name
    for part in _HALF_PI:
        r = f.fma(n, f.number(-part), r)
    z = f.mul(r, r)
    sine = f.fma(f.mul(z, r), f.polynomial(z, _SIN), r)
    cosine = f.fma(f.mul(z, z), f.polynomial(z, _COS), f.fma(z, f.number(-0.5), f.number(1.0)))
    quadrant = f.to_int(n)
    if op == "cos":
        quadrant = f.int_op("add", quadrant, f.whole(1))
    odd = f.text.pure(f"icmp ne {f.integer} {f.int_op('and', quadrant, f.whole(1))}, {f.whole(0)}")
    value = f.text.pure(f"select {f.bool} {odd}, {f.kind} {cosine}, {f.kind} {sine}")
    sign = f.int_op("shl", f.int_op("and", quadrant, f.whole(2)), f.whole(30))
    value = f.from_bits(f.int_op("xor", f.bits(value), sign))
    if op == "sin":  # keeps the sign of zero
        value = f.where("oeq", a.name, f.number(0.0), a.name, value)
    return _unless_far(f, a, op, value)


def _unless_far(f: _Float, a: Ssa, op: str, value: str) -> Ssa:
    """``value``, or the library's answer where a size is beyond `_FAR` (infinities too)."""
    size = f.unary("fabs", a.name)
    far = Ssa(f.text.pure(f"fcmp oge {f.kind} {size}, {f.number(_FAR)}"), torch.bool, a.lanes)
    near = Ssa(value, a.dtype, a.lanes)
    return otherwise(f.text, far, near, lambda: library_call(f.text, op, [a]))


def sin(text: FunctionText, a: Ssa) -> Ssa:
    """The sine, 2 ulp."""
    return _wave(text, a, "sin")


def cos(text: FunctionText, a: Ssa) -> Ssa:
    """The cosine, 2 ulp."""
    return _wave(text, a, "cos")


#: Opcode -> its float32 emitter; everything else comes from the library.
POLYNOMIALS: dict[str, Callable[[FunctionText, Ssa], Ssa]] = {
    "exp": exp,
    "expm1": expm1,
    "sigmoid": sigmoid,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
}
