"""Expression trees as Triton source text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from jitney.errors import CompilerBug
from jitney.loops.index import Atom, Axis, FloorDiv, Index, Mod, index, is_unsigned
from jitney.loops.ir import Const, Expr, IndexValue, Op, Ref, Stmt
from jitney.loops.lowerings.expressions import HALF
from jitney.loops.visit import body_exprs, expr_nodes, stores

#: torch dtype -> Triton's name of a value of it.
TYPES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.bool: "tl.int1",
}

#: torch dtype -> the element's name in a kernel signature.
SIGNATURE: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "i1",
}

_SAME_FOR_ALL: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "abs": "tl.abs({0})",
    "sign": "dm.sign({0})",
    "square": "{0} * {0}",
    "where": "tl.where({0}, {1}, {2})",
}

_FLOAT: dict[str, str] = {
    "neg": "{0} * -1.0",  # Triton's minus is 0 - x, which has no -0.0
    "div": "tl.div_rn({0}, {1})",
    "floordiv": "dm.floordiv_float({0}, {1}, lib.fmod({0}, {1}))",
    "truncdiv": "dm.trunc(tl.div_rn({0}, {1}))",
    "remainder": "dm.remainder({0}, {1}, lib.fmod({0}, {1}))",
    "fmod": "lib.fmod({0}, {1})",
    "pow": "lib.pow({0}, {1})",
    "atan2": "lib.atan2({0}, {1})",
    "hypot": "lib.hypot({0}, {1})",
    "copysign": "lib.copysign({0}, {1})",
    "nextafter": "lib.nextafter({0}, {1})",
    "max": "dm.maximum({0}, {1})",
    "min": "dm.minimum({0}, {1})",
    "fmax": "dm.fmax({0}, {1})",
    "fmin": "dm.fmin({0}, {1})",
    "reciprocal": "tl.div_rn(1.0, {0})",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "tl.rsqrt({0})",
    "exp": "lib.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log10": "lib.log10({0})",
    "sigmoid": "tl.div_rn(1.0, 1.0 + lib.exp(-{0}))",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "dm.trunc({0})",
    "round": "lib.rint({0})",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "signbit": "{0}.to(tl.int32, bitcast=True) < 0",
    "fma": "tl.fma({0}, {1}, {2})",
    **{
        name: f"lib.{name}({{0}})"
        for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()
        + "expm1 log1p erfc lgamma".split()
    },
}

#: What float64 takes instead: the others are made for float32.
_FLOAT64: dict[str, str] = {
    "div": "{0} / {1}",
    "truncdiv": "dm.trunc({0} / {1})",
    "reciprocal": "1.0 / {0}",
    "sigmoid": "1.0 / (1.0 + lib.exp(-{0}))",
    "sqrt": "tl.sqrt({0})",
    "signbit": "{0}.to(tl.int64, bitcast=True) < 0",
}

#: What a last bit decides: comparisons, jumps, and functions that end at a number that is met.
_DECIDING = frozenset(
    "lt le gt ge eq ne remainder fmod floordiv truncdiv floor ceil trunc round sign signbit"
    " copysign acos asin acosh atanh".split()
)

#: What float32 takes instead where only 16 bits are stored: half the instructions, errors of 1e-7
#: and, of exponentials, 1e-7 times the exponent.
_ROUGH: dict[str, str] = {
    "div": "{0} / {1}",
    "reciprocal": "1.0 / {0}",
    "exp": "tl.exp({0})",
    "expm1": "dm.expm1({0})",
    "log1p": "dm.log1p({0})",
    "tanh": "dm.tanh({0})",
    "sigmoid": "dm.sigmoid({0})",
}

_INTEGER: dict[str, str] = {
    "neg": "-{0}",
    "floordiv": "dm.floordiv({0}, {1})",
    "truncdiv": "{0} // {1}",
    "remainder": "dm.remainder_int({0}, {1})",
    "fmod": "{0} % {1}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})",
    "fmin": "tl.minimum({0}, {1})",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round": "{0}",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "signbit": "{0} < 0",
}


#: What floats become on the way to these: eager's -1.0 is 255, 300.0 is 44.
_WIDER = {torch.int8: "tl.int32", torch.int16: "tl.int32", torch.uint8: "tl.int64"}

#: Texts of operations that make a difference in the last place one of a whole number.
ROUNDING = ("tl.floor(", "tl.ceil(", "dm.trunc(", "lib.rint(", "dm.floordiv_float(")


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A scalar as Triton text of the given dtype; nan and the infinities included."""
    if dtype == torch.bool:
        return "1" if value else "0"
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(value)
    if math.isnan(number) or math.isinf(number):
        return f'float("{number}")'
    if number == 0 and math.copysign(1, number) < 0:
        return "dm.minus_zero()"  # Triton takes a literal that equals 0 for 0.0
    return repr(number)


def operation(
    op: str, args: list[str], operand: torch.dtype, result: torch.dtype, rough: bool = False
) -> str:
    """``op`` applied to the variables ``args``; ``operand`` is the dtype they have; ``rough``:
    what is made of it is rounded to 16 bits.

    Raises CompilerBug for an opcode this backend has no text for.
    """
    if op == "cast":
        if result == torch.bool:
            return f"{args[0]} != 0"
        if operand.is_floating_point and not result.is_floating_point:
            wide = ".to(tl.float32)" if operand.itemsize < torch.float32.itemsize else ""
            wider = f".to({_WIDER[result]})" if result in _WIDER else ""
            return f"dm.trunc({args[0]}{wide}){wider}.to({TYPES[result]})"
        rounds_twice = operand == torch.float64 and result.is_floating_point and result.itemsize < 4
        between = ".to(tl.float32)" if rounds_twice else ""  # as C++ converts
        return f"{args[0]}{between}.to({TYPES[result]})"
    if op == "bitcast":
        return f"{args[0]}.to({TYPES[result]}, bitcast=True)"
    if op == "not":
        return f"{args[0]} == 0" if operand == torch.bool else f"~{args[0]}"
    if operand == torch.bool and op in ("add", "mul", "max", "min"):
        op = "or" if op in ("add", "max") else "and"
    template = _SAME_FOR_ALL.get(op) or _own(op, operand)
    if rough and operand == torch.float32:
        template = _ROUGH.get(op, template)
    if template is None:
        raise CompilerBug(f"no Triton text for {op} on {operand}")
    return template.format(*args)


def ends_in_16_bits(body: Iterable[Stmt]) -> bool:
    """Whether every number that ``body`` stores is a float of 16 bits, and none of float32 decides
    on the way: a comparison or a whole number makes much of a difference in the last place."""
    body = tuple(body)
    if not all(store.value.dtype in HALF for store in stores(body)):
        return False
    return not any(_decides(expr) for expr in expr_nodes(body_exprs(body)))


def _decides(expr: Expr) -> bool:
    if not isinstance(expr, Op) or not expr.args or expr.args[0].dtype != torch.float32:
        return False
    whole = expr.op == "cast" and not expr.dtype.is_floating_point
    return whole or expr.op in _DECIDING


def _own(op: str, operand: torch.dtype) -> str | None:
    if operand == torch.float64 and op in _FLOAT64:
        return _FLOAT64[op]
    return (_FLOAT if operand.is_floating_point else _INTEGER).get(op)


def rounded_quotient(expr: Op, lets: Mapping[str, Expr]) -> Op | None:
    """The float32 quotient that ``expr`` rounds to an integer, written in place or named among
    ``lets``. Triton's ``/`` may be two units in the last place off, which would make it another
    integer."""
    if expr.op not in ("trunc", "floor", "ceil", "round"):
        return None
    inner: Expr | None = expr.args[0]
    while isinstance(inner, Ref):
        inner = lets.get(inner.name)
    if isinstance(inner, Op) and inner.op == "div" and inner.dtype == torch.float32:
        return inner
    return None


def erf_plus_one(expr: Op) -> Expr | None:
    """``u`` where ``expr`` is ``1 + erf(u)`` in float32: GELU's sum, for which `device_math` has
    half as many instructions as for erf itself, and no cancellation."""
    if expr.op != "add" or expr.dtype != torch.float32:
        return None
    for one, other in (expr.args, expr.args[::-1]):
        if (
            isinstance(one, Const)
            and one.value == 1
            and isinstance(other, Op)
            and other.op == "erf"
        ):
            return other.args[0]
    return None


def narrow_gelu(expr: Op) -> Expr | None:
    """``x`` where ``expr`` is GELU of the float32 ``x`` rounded to 16 bits, which half as many
    instructions give as for its parts: they count where it follows a matrix product."""
    if expr.op != "cast" or expr.dtype not in HALF:
        return None
    product = expr.args[0]
    if not isinstance(product, Op) or product.op != "mul":
        return None
    for halved, sum_ in (product.args, product.args[::-1]):
        inner = erf_plus_one(sum_) if isinstance(sum_, Op) else None
        x = None if inner is None else _times(inner, math.sqrt(0.5))
        if x is not None and _times(halved, 0.5) == x:
            return x
    return None


def takes_fours(expr: Op, axis: Axis) -> bool:
    """Whether four neighbours along ``axis`` are what a step of eager's is for, from every fourth
    position on."""
    together, element = expr.args[3:]
    several = isinstance(together, Const) and int(together.value) % 4 == 0
    if not several or not isinstance(element, IndexValue):
        return False
    rest = element.index - index(axis)
    whole = axis.extent.is_const and int(axis.extent) % 4 == 0
    return (
        whole
        and axis not in rest.atoms()
        and not any(factor % 4 for factor in (rest.const, *(factor for _, factor in rest.terms)))
    )


def _times(expr: Expr, factor: float) -> Expr | None:
    """``x`` where ``expr`` is ``x * factor``."""
    if not isinstance(expr, Op) or expr.op != "mul":
        return None
    for x, other in (expr.args, expr.args[::-1]):
        if isinstance(other, Const) and abs(float(other.value) - factor) < 1e-6:
            return x
    return None


def index_text(value: Index, names: dict[Atom, str]) -> str:
    """An index as text, each atom under the name it has in the kernel."""
    parts = []
    for monomial, factor in value.terms:
        factors = [_atom_text(atom, names) for atom in monomial]
        if factor != 1:
            factors.append(str(factor))
        parts.append(" * ".join(factors))
    if value.const or not parts:
        parts.append(str(value.const))
    return " + ".join(parts)


def _atom_text(atom: Atom, names: dict[Atom, str]) -> str:
    if not isinstance(atom, FloorDiv | Mod):
        return names[atom]
    top, bottom = index_text(atom.numerator, names), index_text(atom.denominator, names)
    if is_unsigned(atom):
        return f"(({top}) {'//' if isinstance(atom, FloorDiv) else '%'} ({bottom}))"
    name = "floordiv" if isinstance(atom, FloorDiv) else "remainder_int"  # Triton's own truncate
    return f"dm.{name}({top}, {bottom})"
