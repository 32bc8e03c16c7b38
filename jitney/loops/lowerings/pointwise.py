"""Arithmetic, comparison, logic and casts: ops whose element depends on one element each."""

from __future__ import annotations

import math

import torch

from jitney.loops.index import Index
from jitney.loops.ir import Const, Expr, Op, Scalar
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.check_range import check_filler
from jitney.loops.lowerings.elementwise import Formula, elementwise, fake_of, rounded_to
from jitney.loops.lowerings.expressions import (
    Operand,
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    computed,
    const,
    filler,
    is_int,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from jitney.loops.lowerings.registry import OpKey, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
prims = torch.ops.prims

#: op -> opcode of `ir.OPS`, computed in the result's compute dtype.
UNARY: dict[OpKey | None, str] = {
    aten.exp: "exp",
    aten.exp2: "exp2",
    aten.expm1: "expm1",
    aten.log: "log",
    aten.log2: "log2",
    aten.log10: "log10",
    aten.log1p: "log1p",
    aten.sin: "sin",
    aten.cos: "cos",
    aten.tan: "tan",
    aten.asin: "asin",
    aten.acos: "acos",
    aten.atan: "atan",
    aten.tanh: "tanh",
    aten.atanh: "atanh",
    aten.erf: "erf",
    aten.erfc: "erfc",
    aten.lgamma: "lgamma",
    aten.sigmoid: "sigmoid",
    aten.sqrt: "sqrt",
    aten.rsqrt: "rsqrt",
    aten.reciprocal: "reciprocal",
    aten.neg: "neg",
    aten.square: "square",
}
#: The same, but the identity on integers and bool.
ROUNDING: dict[OpKey, str] = {
    aten.floor: "floor",
    aten.ceil: "ceil",
    aten.trunc: "trunc",
    aten.round.default: "round",
}
BINARY: dict[OpKey, str] = {
    aten.atan2: "atan2",
    aten.hypot: "hypot",
    aten.copysign: "copysign",
    aten.fmax: "fmax",
    aten.fmin: "fmin",
    aten.bitwise_and: "and",
    aten.bitwise_or: "or",
    aten.bitwise_xor: "xor",
}
COMPARISONS: dict[OpKey, str] = {
    aten.eq: "eq",
    aten.ne: "ne",
    aten.lt: "lt",
    aten.le: "le",
    aten.gt: "gt",
    aten.ge: "ge",
}


def _apply(opcode: str) -> Formula:
    def formula(*operands: Expr) -> Expr:
        return apply(opcode, *operands)

    return formula


def _register_tables() -> None:
    for op, opcode in UNARY.items():
        elementwise(op)(_apply(opcode))
    for op, opcode in BINARY.items():
        elementwise(op)(_apply(opcode))
    for op, opcode in COMPARISONS.items():
        elementwise(op, operands="promoted")(_apply(opcode))
    for op, opcode in ROUNDING.items():

        def rounding(x: Expr, opcode: str = opcode) -> Expr:
            return apply(opcode, x) if x.dtype.is_floating_point else x

        elementwise(op)(rounding)


_register_tables()


@elementwise(aten.nextafter, operands="own")
def nextafter(x: Expr, y: Expr) -> Expr:
    """The next number towards ``y``. Refused for 16-bit floats and for two dtypes."""
    if x.dtype != y.dtype or compute_dtype(x.dtype) != x.dtype:
        raise Refused("the step is one of the narrow type's")
    return apply("nextafter", x, y)


@elementwise(aten.abs)
def absolute(x: Expr) -> Expr:
    """``|x|``; bool and uint8 stay as they are."""
    return x if x.dtype in (torch.bool, torch.uint8) else apply("abs", x)


@elementwise(aten.sign, aten.sgn)
def sign(x: Expr) -> Expr:
    """-1, 0 or 1, 0 of NaN; bools stay as they are. Of real numbers ``sgn`` is the same."""
    return x if x.dtype is torch.bool else apply("sign", x)


def x_plus(x: Expr, y: Expr, factor: Expr | None) -> Expr:
    """``x + factor * y``; of floats rounded once, as eager does."""
    if factor is None or (isinstance(factor, Const) and factor.value == 1):
        return add(x, y)
    return apply("fma", y, factor, x) if x.dtype.is_floating_point else add(x, mul(y, factor))


def negated(x: Expr) -> Expr:
    """``-x``, a literal if it is one."""
    return const(-x.value, x.dtype) if isinstance(x, Const) else apply("neg", x)


@elementwise(aten.add, prims.add, narrow_on=("cpu",))
def added(x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    """``x + alpha * y``: `x_plus`."""
    return x_plus(x, y, alpha)


@elementwise(aten.sub, prims.sub, narrow_on=("cpu",))
def subtracted(x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    """``x - alpha * y``, as ``x + (-alpha) * y``: `x_plus`."""
    return sub(x, y) if alpha is None else x_plus(x, y, negated(alpha))


@elementwise(aten.rsub, narrow_on=("cpu",))
def subtracted_from(x: Expr, y: Expr, alpha: Expr | None = None) -> Expr:
    """``y - alpha * x``: `subtracted` the other way round."""
    return sub(y, x) if alpha is None else x_plus(y, x, negated(alpha))


@elementwise(aten.mul, prims.mul, wide_on_cpu="other")
def multiplied(x: Expr, y: Expr) -> Expr:
    """``x * y``; a CPU's 16-bit loop does not round an ``other`` of one element."""
    return mul(x, y)


@elementwise(aten.maximum)
def larger(x: Expr, y: Expr) -> Expr:
    """Elementwise; NaN wins. Of bools the logical or."""
    return maximum(x, y)


@elementwise(aten.minimum)
def smaller(x: Expr, y: Expr) -> Expr:
    """Elementwise; NaN wins. Of bools the logical and."""
    return minimum(x, y)


@elementwise(aten.clamp, exact_numbers=True)
def clamp(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    """``min(max(x, low), high)``, of the bounds given: ``high`` wins over ``low``, NaN over all."""
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


@elementwise(aten.clamp_min, exact_numbers=True)
def clamp_min(x: Expr, low: Expr) -> Expr:
    """``max(x, low)``; NaN wins."""
    return maximum(x, low)


@elementwise(aten.clamp_max, exact_numbers=True)
def clamp_max(x: Expr, high: Expr) -> Expr:
    """``min(x, high)``; NaN wins."""
    return minimum(x, high)


@elementwise(aten.bitwise_not)
def bitwise_not(x: Expr) -> Expr:
    """``~x``; of bools the logical not."""
    return apply("not", x)


@elementwise(aten.__lshift__, aten.bitwise_left_shift)
def shifted_left(x: Expr, y: Expr) -> Expr:
    """``x << y``. Refused for floats, and unless ``y`` is a literal below the dtype's bits."""
    return _shifted("shl", x, y)


@elementwise(aten.__rshift__, aten.bitwise_right_shift)
def shifted_right(x: Expr, y: Expr) -> Expr:
    """``x >> y``, of signed integers arithmetic. Refused as `shifted_left`."""
    return _shifted("shr", x, y)


def _shifted(opcode: str, x: Expr, y: Expr) -> Expr:
    if not is_int(x.dtype):
        raise Refused("a shift of floats")
    if not (isinstance(y, Const) and 0 <= y.value < torch.iinfo(x.dtype).bits):
        raise Refused("a shift by a count that may be out of range")
    return apply(opcode, x, y)


@elementwise(aten.pow, prims.pow, with_builder=True)
def power(b: Builder, x: Expr, y: Expr) -> Expr:
    """Exponents for which eager multiplies, or takes a root, do the same here."""
    if is_int(x.dtype):
        return _integer_power(x, y)
    if x.dtype is torch.bool:
        raise Refused("a power of bools")
    given, x, y = y, rounded_to(b.fake.dtype, x), rounded_to(b.fake.dtype, y)
    if isinstance(y, Const):
        short = _short_power(b, x, y.value, isinstance(given, Const) and given.value == y.value)
        return apply("pow", x, y) if short is None else short
    value = apply("pow", x, y)
    on_cpu = b.target.kind == "cpu"
    if isinstance(fake_of(b.node.args[1]), torch.Tensor) or on_cpu and b.fake.dtype == torch.half:
        return value
    for exponent, asked in ((-2, y), (0.5, given), (-0.5, given)):  # others differ by rounding
        short = _short_power(b, x, exponent, True)
        assert short is not None
        value = where(apply("eq", asked, const(exponent, asked.dtype)), short, value)
    return value


def _short_power(b: Builder, x: Expr, exponent: Scalar, exact: bool) -> Expr | None:
    """What eager computes for that exponent other than a power; ``exact``: it is what the program
    says, not what 16 bits hold of it, which makes no root."""
    own, on_cpu = b.fake.dtype, b.target.kind == "cpu"
    square = mul(x, x)
    if exponent in (3, -2) and not (on_cpu and own is torch.float16):
        square = rounded_to(own, square)
    if exponent in (2, 3):
        return square if exponent == 2 else mul(square, x)
    if exponent == -2:
        return apply("reciprocal", square)
    if exponent in (0.5, -0.5) and (not exact or on_cpu and own is torch.float16):
        # eager calls pow: roots of -0 and -inf are those of 0 and inf
        endless, infinity = (const(v, x.dtype) for v in (-math.inf, math.inf))
        x = where(apply("eq", x, endless), infinity, add(x, const(0, x.dtype)))
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in roots:
        return apply(roots[exponent], x)
    return x if exponent == 1 else None


def _integer_power(x: Expr, y: Expr) -> Expr:
    if not (isinstance(y, Const) and 0 <= y.value <= 8):
        raise Refused("an integer power whose exponent is not a small literal")
    result: Expr = const(1, x.dtype)
    for _ in range(int(y.value)):
        result = mul(result, x)
    return result


@elementwise(aten.where.self, prims.where, operands="own")
def selected(condition: Expr, x: Operand, y: Operand) -> Expr:
    """``x`` where ``condition`` holds, else ``y``, both in the dtype they promote to."""
    return where(condition, *_promoted(x, y))


def _promoted(x: Operand, y: Operand) -> tuple[Expr, Expr]:
    dtypes = [v.dtype for v in (x, y) if not isinstance(v, bool | int | float | Index)]
    dtype = dtypes[0]
    for other in dtypes[1:]:
        dtype = torch.promote_types(dtype, other)
    return as_expr(x, dtype), as_expr(y, dtype)


@lowers(aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_scalar(
    b: Builder, condition: StridedTensor, x: StridedTensor | Operand, y: StridedTensor | Operand
) -> StridedTensor:
    """As `selected`, one side a number; refused if the result's dtype does not hold it."""
    out = b.allocate()

    def side(value: StridedTensor | Operand, position: tuple[Index, ...]) -> Expr:
        if isinstance(value, StridedTensor):
            return cast(value.load(position), out.dtype)
        return filler(value, out.dtype)

    return b.compute(out, lambda p: where(condition.load(p), side(x, p), side(y, p)))


@lowers(aten.masked_fill)
def masked_fill(
    b: Builder, x: StridedTensor, mask: StridedTensor, value: StridedTensor | Operand
) -> StridedTensor:
    """``value`` where ``mask`` holds, else ``x``. Refused for a number the dtype does not hold."""
    out = b.allocate()
    if isinstance(value, StridedTensor):
        check_filler(b, value, x.dtype)

    def value_at(position: tuple[Index, ...]) -> Expr:
        kept = x.load(position)
        if isinstance(value, StridedTensor):
            filled = cast(value.load(position), kept.dtype)
        else:
            filled = filler(value, kept.dtype)
        return where(mask.load(position), filled, kept)

    return b.compute(out, value_at)


@elementwise(aten.logical_not, operands="own")
def logical_not(x: Expr) -> Expr:
    """Whether ``x`` is zero; NaN is not."""
    return apply("not", cast(x, torch.bool))


@elementwise(aten.logical_and, operands="promoted")
def logical_and(x: Expr, y: Expr) -> Expr:
    """Whether neither is zero, in the promoted dtype; NaN is not."""
    return apply("and", cast(x, torch.bool), cast(y, torch.bool))


@elementwise(aten.logical_or, operands="promoted")
def logical_or(x: Expr, y: Expr) -> Expr:
    """Whether one is not zero, in the promoted dtype; NaN is not."""
    return apply("or", cast(x, torch.bool), cast(y, torch.bool))


@elementwise(aten.logical_xor, operands="promoted")
def logical_xor(x: Expr, y: Expr) -> Expr:
    """Whether just one is zero, in the promoted dtype; NaN is not."""
    return apply("xor", cast(x, torch.bool), cast(y, torch.bool))


def _float_test(opcode: str) -> Formula:
    def formula(x: Expr) -> Expr:
        if not x.dtype.is_floating_point:
            return const(False, torch.bool)
        return apply(opcode, computed(x))

    return formula


elementwise(aten.isnan, operands="own")(_float_test("isnan"))
elementwise(aten.isinf, operands="own")(_float_test("isinf"))


@elementwise(aten.signbit, operands="own")
def signbit(x: Expr) -> Expr:
    """The sign bit, of -0.0 and NaN too; of integers ``x < 0``, of bools False."""
    if x.dtype.is_floating_point:
        return apply("signbit", computed(x))
    if x.dtype is torch.bool:
        return const(False, torch.bool)
    return apply("lt", x, const(0, x.dtype))


def _equals_infinity(value: float) -> Formula:
    def formula(x: Expr) -> Expr:
        if not x.dtype.is_floating_point:
            return const(False, torch.bool)
        x = computed(x)
        return apply("eq", x, const(value, x.dtype))

    return formula


elementwise(aten.isposinf, operands="own")(_equals_infinity(math.inf))
elementwise(aten.isneginf, operands="own")(_equals_infinity(-math.inf))


@elementwise(
    aten._to_copy,
    aten.clone,
    aten.positive,
    aten.lift_fresh_copy,
    prims.clone,
    operands="own",
)
def copied(x: Expr, **_options: object) -> Expr:
    """The element; storing it converts it to the dtype of the result, which has its own strides."""
    return x


@elementwise(prims.convert_element_type, operands="own")
def converted(x: Expr, dtype: torch.dtype) -> Expr:
    """The element; storing it converts it."""
    return x


@lowers(aten.copy.default)
def copy(
    b: Builder, x: StridedTensor, source: StridedTensor, non_blocking: bool = False
) -> StridedTensor:
    """``source``, broadcast and converted; ``x`` only says what the result is like."""
    return b.copy(b.allocate(), source)


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(b: Builder, x: StridedTensor, value: StridedTensor | Operand) -> StridedTensor:
    """``value`` everywhere. Refused for a number that the dtype does not hold."""
    out = b.allocate()
    if isinstance(value, StridedTensor):
        return b.copy(out, value)
    return b.compute(out, lambda _: filler(value, out.dtype))


def bitcastable(source: torch.dtype, to: torch.dtype) -> bool:
    """Two dtypes of one size that a register can be read as either of."""
    return source.itemsize == to.itemsize and torch.bool not in (source, to)


@lowers(aten.view.dtype)
def view_dtype(b: Builder, x: StridedTensor, dtype: torch.dtype) -> StridedTensor:
    """The same bits. Refused for sizes that differ, for bool, and into 16-bit floats."""
    if not bitcastable(x.dtype, dtype) or compute_dtype(dtype) != dtype:
        raise Refused("a reinterpretation between element sizes")
    return b.compute(b.allocate(), lambda p: Op("bitcast", (x.load(p),), dtype))
