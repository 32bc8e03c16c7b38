"""Small constructors for scalar expressions: types checked, constants folded where it is exact."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from jitney.loops.index import Index
from jitney.loops.ir import GIVE_BOOL, OPS, Const, Expr, IndexValue, Op, Scalar
from jitney.loops.lowerings.registry import Refused

HALF = (torch.bfloat16, torch.float16)
LOWERABLE = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    )
)
Number = bool | int | float
#: What a lowering gets where the schema says Scalar (or Tensor): resolved by `as_expr`.
Operand = Expr | Index | Number


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic on ``dtype`` is done in: f32 for the 16-bit floats."""
    return torch.float32 if dtype in HALF else dtype


def is_int(dtype: torch.dtype) -> bool:
    """An integer dtype, bool not among them."""
    return dtype is not torch.bool and not dtype.is_floating_point and not dtype.is_complex


def const(value: Number, dtype: torch.dtype) -> Const:
    """A literal of ``dtype``, converted as ``torch.tensor(value).to(dtype)`` would."""
    if dtype.is_floating_point:
        held = ctypes.c_float(value).value if dtype is torch.float32 else float(value)
        return Const(held, dtype)
    if dtype is torch.bool:
        return Const(bool(value), dtype)
    if isinstance(value, float) and not math.isfinite(value):
        return Const(torch.iinfo(dtype).min, dtype)
    bits = torch.iinfo(dtype).bits
    wrapped = int(value) & ((1 << bits) - 1)
    if torch.iinfo(dtype).min < 0 and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return Const(wrapped, dtype)


def holds(dtype: torch.dtype, value: object) -> bool:
    """Whether a number is in the range of ``dtype``; true for what is not a number."""
    if dtype is torch.bool or not isinstance(value, int | float):
        return True
    if dtype.is_floating_point and not math.isfinite(value):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def filler(value: Operand, dtype: torch.dtype) -> Expr:
    """What memory of ``dtype`` is filled with; refused where eager may raise instead."""
    if not holds(dtype, value):
        raise Refused(f"{value} is no {dtype}")
    return as_expr(value, dtype)


def as_expr(value: Operand, dtype: torch.dtype) -> Expr:
    """An operand as an expression of ``dtype``."""
    if isinstance(value, bool | int | float):
        return const(value, dtype)
    if isinstance(value, Index):
        if value.is_const:
            return const(value.const, dtype)
        return cast(IndexValue(value, torch.int64), dtype)
    return cast(value, dtype)


def apply(op: str, *args: Expr) -> Expr:
    """``Op`` with the result dtype the table implies; operands must agree."""
    assert OPS[op] == len(args), (op, len(args))
    if op == "where":
        assert args[0].dtype is torch.bool and args[1].dtype == args[2].dtype, args
        return Op(op, args, args[1].dtype)
    assert all(a.dtype == args[0].dtype for a in args), (op, [a.dtype for a in args])
    return Op(op, args, torch.bool if op in GIVE_BOOL else args[0].dtype)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """``value`` converted; nothing when it has that dtype already."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and dtype not in HALF:
        return const(value.value, dtype)
    return Op("cast", (value,), dtype)


def computed(load: Expr) -> Expr:
    """A loaded value in the dtype in which arithmetic is done."""
    return cast(load, compute_dtype(load.dtype))


def _is(value: Expr, number: Scalar) -> bool:
    return isinstance(value, Const) and value.value == number


def add(a: Expr, b: Expr) -> Expr:
    """``a + b`` (logical or on bool)."""
    if a.dtype is torch.bool:
        return apply("or", a, b)
    if is_int(a.dtype) and (_is(a, 0) or _is(b, 0)):
        return b if _is(a, 0) else a
    return apply("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    """``a - b``."""
    if is_int(a.dtype) and _is(b, 0):
        return a
    return apply("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """``a * b`` (logical and on bool); a literal one is dropped."""
    if a.dtype is torch.bool:
        return apply("and", a, b)
    if _is(b, 1):
        return a
    if _is(a, 1):
        return b
    return apply("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    """True division of floats."""
    assert a.dtype.is_floating_point, a.dtype
    return a if _is(b, 1) else apply("div", a, b)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where ``condition`` (cast to bool) holds, else ``b``."""
    return apply("where", cast(condition, torch.bool), a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """The greater value; NaN if either is NaN. Logical or for bools."""
    return apply("or" if a.dtype is torch.bool else "max", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """The lesser value; NaN if either is NaN. Logical and for bools."""
    return apply("and" if a.dtype is torch.bool else "min", a, b)


def all_of(*conditions: Expr | None) -> Expr | None:
    """The conjunction; None stands for true."""
    result: Expr | None = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else apply("and", result, condition)
    return result


def index_expr(value: Index) -> Expr:
    """An index as an i64 number."""
    return const(value.const, torch.int64) if value.is_const else IndexValue(value, torch.int64)


def in_range(value: Index, low: Index | int, high: Index | int) -> Expr | None:
    """``low <= value < high`` as an expression; None when always true."""
    conditions: list[Expr | None] = []
    below, above = (value - low).bounds()[0], (value - high).bounds()[1]
    if below is None or below < 0:
        conditions.append(apply("ge", index_expr(value), as_expr(low, torch.int64)))
    if above is None or above >= 0:
        conditions.append(apply("lt", index_expr(value), as_expr(high, torch.int64)))
    return all_of(*conditions)


def all_in_range(position: Sequence[Index], sizes: Sequence[Index | int]) -> Expr | None:
    """Whether each coordinate is in ``range(size)``; None when always true."""
    return all_of(*(in_range(at, 0, size) for at, size in zip(position, sizes, strict=True)))


def largest(dtype: torch.dtype) -> Scalar:
    """The identity of a minimum: inf, or the largest integer."""
    if dtype.is_floating_point:
        return math.inf
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def lowest(dtype: torch.dtype) -> Scalar:
    """The identity of a maximum: -inf, or the least integer."""
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype is torch.bool else torch.iinfo(dtype).min
