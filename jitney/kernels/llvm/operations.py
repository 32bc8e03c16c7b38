"""Every opcode of `loops.ir.OPS` on SSA values, with eager's meaning."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitney.errors import CompilerBug
from jitney.kernels.llvm.conversions import (
    HALVES,
    bitcast,
    cast,
    match_lanes,
    narrow,
    suffix,
    widen,
)
from jitney.kernels.llvm.library_math import SLEEF, library_call, otherwise
from jitney.kernels.llvm.ssa import UNSIGNED, Ssa, bits, constant, is_float, llvm_type, vector_of
from jitney.kernels.llvm.text import FunctionText
from jitney.kernels.llvm.vector_math import POLYNOMIALS


def emit_op(text: FunctionText, op: str, args: list[Ssa], dtype: torch.dtype) -> Ssa:
    """``op`` of ``args`` (broadcast to equal lanes) as a value of ``dtype``."""
    if op == "cast":
        return cast(text, args[0], dtype)
    if op == "bitcast":
        return bitcast(text, args[0], dtype)
    if len(args) > 1:
        args = match_lanes(text, args)
    if op == "where":
        return select(text, args[0], cast(text, args[1], dtype), cast(text, args[2], dtype))
    if args[0].dtype in HALVES:
        wide = emit_op(text, op, [widen(text, a) for a in args], _widened(dtype))
        return narrow(text, wide, dtype) if dtype in HALVES else wide
    if op in _COMPARE:
        return _compare(text, op, args)
    if dtype == torch.float32 and op in POLYNOMIALS:
        return POLYNOMIALS[op](text, args[0])
    table = _FLOAT if is_float(args[0].dtype) else _BOOL if dtype == torch.bool else _INTEGER
    emit = table.get(op)
    if emit is not None:
        return emit(text, args)
    if is_float(dtype) and op in SLEEF:
        return library_call(text, op, args)
    raise CompilerBug(f"no code for {op} of {args[0].dtype} giving {dtype}")


def _widened(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


def select(text: FunctionText, condition: Ssa, yes: Ssa, no: Ssa) -> Ssa:
    """``condition ? yes : no`` lane by lane."""
    condition, yes, no = match_lanes(text, [condition, yes, no])
    name = text.pure(f"select {condition.typed}, {yes.typed}, {no.typed}")
    return Ssa(name, yes.dtype, yes.lanes)


# ---------------------------------------------------------------- comparisons

_COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}


def _compare(text: FunctionText, op: str, args: list[Ssa]) -> Ssa:
    a, b = args
    ordered, signed, unsigned = _COMPARE[op]
    if is_float(a.dtype):
        return compare(text, f"fcmp {ordered}", a, b)
    return compare(text, f"icmp {unsigned if a.dtype in UNSIGNED else signed}", a, b)


def compare(text: FunctionText, code: str, a: Ssa, b: Ssa) -> Ssa:
    """``code`` ("fcmp ogt", "icmp slt", …) of two values as bools."""
    return Ssa(text.pure(f"{code} {a.typed}, {b.name}"), torch.bool, a.lanes)


# ---------------------------------------------------------------- pieces

Emit = Callable[[FunctionText, list[Ssa]], Ssa]


def _apply(text: FunctionText, code: str, a: Ssa, b: Ssa) -> Ssa:
    """The instruction ``code``, whose result is of its operands' type."""
    return Ssa(text.pure(f"{code} {a.typed}, {b.name}"), a.dtype, a.lanes)


def _binary(code: str) -> Emit:
    return lambda text, args: _apply(text, code, *args)


def _intrinsic(name: str, *tail: str) -> Emit:
    def emit(text: FunctionText, args: list[Ssa]) -> Ssa:
        typed = [*(a.typed for a in args), *tail]
        result = text.call(args[0].type, f"llvm.{name}.{suffix(args[0])}", *typed)
        return Ssa(result, args[0].dtype, args[0].lanes)

    return emit


def number(like: Ssa, value: float) -> Ssa:
    """The constant ``value`` of the same type as ``like``."""
    return constant(value, like.dtype, like.lanes)


f_add, f_sub, f_mul, f_div = (_binary(c) for c in ("fadd", "fsub", "fmul", "fdiv"))
f_abs, f_floor, f_trunc = (_intrinsic(n) for n in ("fabs", "floor", "trunc"))
f_copysign, f_sqrt, f_fma = (_intrinsic(n) for n in ("copysign", "sqrt", "fma"))


def is_nan(text: FunctionText, a: Ssa) -> Ssa:
    """Lanes that hold a NaN."""
    return compare(text, "fcmp uno", a, a)


def _f_neg(text: FunctionText, args: list[Ssa]) -> Ssa:
    return Ssa(text.pure(f"fneg {args[0].typed}"), args[0].dtype, args[0].lanes)


def _f_extreme(code: str) -> Emit:
    """max or min that keeps a NaN of either side, and the first of two zeros, as eager's clamps do
    (one hardware max, one blend)."""

    def emit(text: FunctionText, args: list[Ssa]) -> Ssa:
        a, b = args
        best = select(text, compare(text, f"fcmp {code}", b, a), b, a)
        return select(text, is_nan(text, b), b, best)

    return emit


def _f_extreme_of_numbers(code: str) -> Emit:
    """max or min that prefers a number to a NaN, and the first of two zeros."""

    def emit(text: FunctionText, args: list[Ssa]) -> Ssa:
        a, b = args
        best = select(text, compare(text, f"fcmp {code}", b, a), b, a)
        return select(text, is_nan(text, b), a, best)

    return emit


def _f_sign(text: FunctionText, args: list[Ssa]) -> Ssa:
    (a,) = args
    zero = number(a, 0.0)
    positive = cast(text, compare(text, "fcmp ogt", a, zero), a.dtype)
    negative = cast(text, compare(text, "fcmp olt", a, zero), a.dtype)
    return f_sub(text, [positive, negative])


def _f_reciprocal(text: FunctionText, args: list[Ssa]) -> Ssa:
    return f_div(text, [number(args[0], 1.0), args[0]])


def _f_rsqrt(text: FunctionText, args: list[Ssa]) -> Ssa:
    return _f_reciprocal(text, [f_sqrt(text, args)])


def _square(multiply: Emit) -> Emit:
    return lambda text, args: multiply(text, [args[0], args[0]])


def _f_truncdiv(text: FunctionText, args: list[Ssa]) -> Ssa:
    return f_trunc(text, [f_div(text, args)])


#: Quotients from which Sleef's fmod overflows on its way.
_FAR = {torch.float32: 2.0**100, torch.float64: 2.0**900}


def _f_fmod(text: FunctionText, args: list[Ssa]) -> Ssa:
    """Sleef's, or where a quotient is far libm's, behind a branch that is hardly ever taken."""
    a = args[0]
    size = f_abs(text, [f_div(text, args)])
    far = compare(text, "fcmp oge", size, number(a, _FAR[a.dtype]))
    value = library_call(text, "fmod", args)
    return otherwise(text, far, value, lambda: _binary("frem")(text, args))


def _signs_differ(text: FunctionText, rest: Ssa, b: Ssa) -> Ssa:
    """``rest != 0 and (b < 0) != (rest < 0)``: where rounding to zero is not rounding down."""
    nonzero = compare(text, "fcmp une", rest, number(rest, 0.0))
    below = [compare(text, "fcmp olt", x, number(x, 0.0)) for x in (b, rest)]
    return _apply(text, "and", nonzero, _apply(text, "xor", *below))


def _f_remainder(text: FunctionText, args: list[Ssa]) -> Ssa:
    rest = _f_fmod(text, args)
    shifted = f_add(text, [rest, args[1]])
    return select(text, _signs_differ(text, rest, args[1]), shifted, rest)


def _f_floordiv(text: FunctionText, args: list[Ssa]) -> Ssa:
    """c10::div_floor_floating: exact where ``a / b`` would round up to the next integer."""
    a, b = args
    zero, quotient = number(a, 0.0), f_div(text, args)
    rest = _f_fmod(text, args)
    whole = f_div(text, [f_sub(text, [a, rest]), b])
    lower = f_sub(text, [whole, number(a, 1.0)])
    whole = select(text, _signs_differ(text, rest, b), lower, whole)
    floor = f_floor(text, [whole])
    far = compare(text, "fcmp ogt", f_sub(text, [whole, floor]), number(a, 0.5))
    floor = select(text, far, f_add(text, [floor, number(a, 1.0)]), floor)
    signed_zero = f_copysign(text, [zero, quotient])
    floor = select(text, compare(text, "fcmp oeq", whole, zero), signed_zero, floor)
    return select(text, compare(text, "fcmp oeq", b, zero), quotient, floor)


def _f_pow(text: FunctionText, args: list[Ssa]) -> Ssa:
    """Eager's shortcuts for common constant exponents, else the library's pow."""
    a, exponent = args
    for value, emit in _POWERS.items():
        if exponent.name == number(exponent, value).name:
            return emit(text, a)
    return library_call(text, "pow", args)


_POWERS: dict[float, Callable[[FunctionText, Ssa], Ssa]] = {
    2.0: lambda t, a: f_mul(t, [a, a]),
    3.0: lambda t, a: f_mul(t, [f_mul(t, [a, a]), a]),
    0.5: lambda t, a: f_sqrt(t, [a]),
    -0.5: lambda t, a: _f_rsqrt(t, [a]),
    -1.0: lambda t, a: _f_reciprocal(t, [a]),
    -2.0: lambda t, a: _f_reciprocal(t, [f_mul(t, [a, a])]),
}


def _f_isinf(text: FunctionText, args: list[Ssa]) -> Ssa:
    return compare(text, "fcmp oeq", f_abs(text, args), number(args[0], float("inf")))


def _f_signbit(text: FunctionText, args: list[Ssa]) -> Ssa:
    whole = torch.int32 if args[0].dtype == torch.float32 else torch.int64
    word = bitcast(text, args[0], whole)
    return compare(text, "icmp slt", word, number(word, 0))


def _f_sigmoid(text: FunctionText, args: list[Ssa]) -> Ssa:
    power = emit_op(text, "exp", [_f_neg(text, args)], args[0].dtype)
    return _f_reciprocal(text, [f_add(text, [power, number(power, 1.0)])])


_FLOAT: dict[str, Emit] = {
    "add": f_add,
    "sub": f_sub,
    "mul": f_mul,
    "div": f_div,
    "truncdiv": _f_truncdiv,
    "floordiv": _f_floordiv,
    "remainder": _f_remainder,
    "fmod": _f_fmod,
    "pow": _f_pow,
    "max": _f_extreme("ogt"),
    "min": _f_extreme("olt"),
    "fmax": _f_extreme_of_numbers("ugt"),
    "fmin": _f_extreme_of_numbers("ult"),
    "neg": _f_neg,
    "abs": f_abs,
    "sign": _f_sign,
    "reciprocal": _f_reciprocal,
    "sqrt": f_sqrt,
    "rsqrt": _f_rsqrt,
    "square": _square(f_mul),
    "floor": f_floor,
    "ceil": _intrinsic("ceil"),
    "trunc": f_trunc,
    "round": _intrinsic("roundeven"),
    "copysign": f_copysign,
    "fma": f_fma,
    "isnan": lambda text, args: is_nan(text, args[0]),
    "isinf": _f_isinf,
    "signbit": _f_signbit,
    "sigmoid": _f_sigmoid,
}

# ---------------------------------------------------------------- integers

i_add, i_sub, i_mul = (_binary(c) for c in ("add", "sub", "mul"))
i_and, i_or, i_xor = (_binary(c) for c in ("and", "or", "xor"))


def _i_divide(text: FunctionText, args: list[Ssa], code: str) -> Ssa:
    """``code`` is "div" or "rem"; a divisor 0 or the overflowing -1 never reaches the
    instruction, which would trap."""
    a, b = args
    if b.dtype in UNSIGNED:
        safe = select(text, compare(text, "icmp eq", b, number(b, 0)), number(b, 1), b)
        return _apply(text, f"u{code}", a, safe)
    known = not b.name.startswith("%") and b.name not in (number(b, 0).name, number(b, -1).name)
    if known:
        return _apply(text, f"s{code}", a, b)
    minus = compare(text, "icmp eq", b, number(b, -1))
    bad = _apply(text, "or", minus, compare(text, "icmp eq", b, number(b, 0)))
    plain = _apply(text, f"s{code}", a, select(text, bad, number(b, 1), b))
    negated = i_sub(text, [number(a, 0), a]) if code == "div" else number(a, 0)
    return select(text, minus, negated, plain)


def _i_truncdiv(text: FunctionText, args: list[Ssa]) -> Ssa:
    return _i_divide(text, args, "div")


def _i_fmod(text: FunctionText, args: list[Ssa]) -> Ssa:
    return _i_divide(text, args, "rem")


def _rounds_up(text: FunctionText, rest: Ssa, b: Ssa) -> Ssa:
    nonzero = compare(text, "icmp ne", rest, number(rest, 0))
    signs = i_xor(text, [rest, b])
    return _apply(text, "and", nonzero, compare(text, "icmp slt", signs, number(signs, 0)))


def _i_floordiv(text: FunctionText, args: list[Ssa]) -> Ssa:
    quotient = _i_truncdiv(text, args)
    if args[0].dtype in UNSIGNED:
        return quotient
    rest = i_sub(text, [args[0], i_mul(text, [quotient, args[1]])])
    lower = i_sub(text, [quotient, number(quotient, 1)])
    return select(text, _rounds_up(text, rest, args[1]), lower, quotient)


def _i_remainder(text: FunctionText, args: list[Ssa]) -> Ssa:
    rest = _i_fmod(text, args)
    if args[0].dtype in UNSIGNED:
        return rest
    shifted = i_add(text, [rest, args[1]])
    return select(text, _rounds_up(text, rest, args[1]), shifted, rest)


def _i_extreme(code: str) -> Emit:
    def emit(text: FunctionText, args: list[Ssa]) -> Ssa:
        sign = "u" if args[0].dtype in UNSIGNED else "s"
        return _intrinsic(f"{sign}{code}")(text, args)

    return emit


def _i_shift(code: str) -> Emit:
    """A shift by a negative amount, or by all bits or more, gives 0 (or the sign)."""

    def emit(text: FunctionText, args: list[Ssa]) -> Ssa:
        a, by = args
        unsigned = a.dtype in UNSIGNED
        right = ("lshr" if unsigned else "ashr") if code == "shr" else "shl"
        wide = compare(text, "icmp uge", by, number(by, bits(a.dtype)))
        shifted = _apply(text, right, a, select(text, wide, number(by, 0), by))
        if right == "ashr":
            full = _apply(text, right, a, number(a, bits(a.dtype) - 1))
            return select(text, wide, full, shifted)
        return select(text, wide, number(a, 0), shifted)

    return emit


def _i_abs(text: FunctionText, args: list[Ssa]) -> Ssa:
    if args[0].dtype in UNSIGNED:
        return args[0]
    return _intrinsic("abs", "i1 false")(text, args)


def _i_sign(text: FunctionText, args: list[Ssa]) -> Ssa:
    (a,) = args
    zero, one = number(a, 0), number(a, 1)
    if a.dtype in UNSIGNED:
        return select(text, compare(text, "icmp ne", a, zero), one, zero)
    negative = select(text, compare(text, "icmp slt", a, zero), number(a, -1), zero)
    return select(text, compare(text, "icmp sgt", a, zero), one, negative)


def _i_pow(text: FunctionText, args: list[Ssa]) -> Ssa:
    """Square and multiply over six bits of the exponent; a negative exponent gives 0 but for a
    base of 1 or -1."""
    base, exponent = args
    result, power, odd_bits = number(base, 1), base, exponent
    for _ in range(6):
        odd = i_and(text, [odd_bits, number(odd_bits, 1)])
        taken = compare(text, "icmp ne", odd, number(odd, 0))
        result = select(text, taken, i_mul(text, [result, power]), result)
        power = i_mul(text, [power, power])
        odd_bits = _apply(text, "lshr", odd_bits, number(odd_bits, 1))
    if exponent.dtype in UNSIGNED:
        return result
    parity = i_and(text, [exponent, number(exponent, 1)])
    even = compare(text, "icmp eq", parity, number(parity, 0))
    alternating = select(text, even, number(base, 1), number(base, -1))
    inverse = select(text, compare(text, "icmp eq", base, number(base, -1)), alternating,
                     number(base, 0))  # fmt: skip
    inverse = select(text, compare(text, "icmp eq", base, number(base, 1)), base, inverse)
    negative = compare(text, "icmp slt", exponent, number(exponent, 0))
    return select(text, negative, inverse, result)


_INTEGER: dict[str, Emit] = {
    "add": i_add,
    "sub": i_sub,
    "mul": i_mul,
    "truncdiv": _i_truncdiv,
    "floordiv": _i_floordiv,
    "fmod": _i_fmod,
    "remainder": _i_remainder,
    "pow": _i_pow,
    "max": _i_extreme("max"),
    "min": _i_extreme("min"),
    "fmax": _i_extreme("max"),
    "fmin": _i_extreme("min"),
    "and": i_and,
    "or": i_or,
    "xor": i_xor,
    "shl": _i_shift("shl"),
    "shr": _i_shift("shr"),
    "neg": lambda text, args: i_sub(text, [number(args[0], 0), args[0]]),
    "abs": _i_abs,
    "sign": _i_sign,
    "not": lambda text, args: i_xor(text, [args[0], number(args[0], -1)]),
    "square": _square(i_mul),
    "floor": lambda text, args: args[0],
    "ceil": lambda text, args: args[0],
    "trunc": lambda text, args: args[0],
    "round": lambda text, args: args[0],
    "fma": lambda text, args: i_add(text, [i_mul(text, args[:2]), args[2]]),
}


def _always(value: bool) -> Emit:
    return lambda text, args: constant(value, torch.bool, args[0].lanes)


def _i_signbit(text: FunctionText, args: list[Ssa]) -> Ssa:
    if args[0].dtype in UNSIGNED:
        return constant(False, torch.bool, args[0].lanes)
    return compare(text, "icmp slt", args[0], number(args[0], 0))


def _not(text: FunctionText, args: list[Ssa]) -> Ssa:
    ones = Ssa("splat (i1 true)" if args[0].lanes else "true", torch.bool, args[0].lanes)
    return i_xor(text, [args[0], ones])


#: Result bool: operands are bools, or integers for the tests at the end.
_BOOL: dict[str, Emit] = {
    "add": i_or,
    "mul": i_and,
    "and": i_and,
    "or": i_or,
    "xor": i_xor,
    "max": i_or,
    "fmax": i_or,
    "min": i_and,
    "fmin": i_and,
    "not": _not,
    "isnan": _always(False),
    "isinf": _always(False),
    "signbit": _i_signbit,
    "abs": lambda text, args: args[0],
    "sign": lambda text, args: args[0],
    "square": lambda text, args: args[0],
}
__all__ = ["compare", "emit_op", "llvm_type", "select", "vector_of"]
