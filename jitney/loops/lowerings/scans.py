"""Running sums, products and extremes: one kernel on a GPU (`ir.RUNNING`); on a CPU ``log2(n)``
passes that each look twice as far back.

After the pass of step ``s`` an element holds its value combined with those of the ``2 s - 1``
before it (Hillis and Steele, "Data parallel algorithms", 1986). Every pass is a nest of vectors,
where the recurrence itself would wait for each addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from jitney.loops.index import index
from jitney.loops.ir import Expr, Op, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    Number,
    add,
    all_of,
    apply,
    cast,
    compute_dtype,
    const,
    in_range,
    index_expr,
    largest,
    lowest,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Lowering, Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten

#: Longer rows are left to ATen's loop: the longer they are, the more passes there are. Up to here
#: a sum, in double precision, and an extreme with its place take as much time as ATen's.
LONGEST, LONGEST_SUM, LONGEST_EXTREME = 1024, 256, 32
#: A lone row on a GPU from here on: ATen's kernel takes all multiprocessors, ours would take one.
LONGEST_LONE = 1 << 15


def _length(b: Builder, x: StridedTensor, dim: int, longest: int) -> int:
    """The length of a row; refused where passes do not pay."""
    if b.target.kind != "cpu":
        raise Refused("two results of one scan")
    size = x.shape[dim] if x.ndim else index(1)
    if not size.is_const or size.const > longest:
        raise Refused("a scan of unknown or great length")
    return size.const


def _back(
    x: StridedTensor, position: Position, dim: int, step: int, identity: Number
) -> tuple[Expr, Expr | None]:
    """The element ``step`` before, and whether there is one (None: there is no row to look at)."""
    before = position[dim] - step
    mask = all_of(in_range(before, 0, x.shape[dim]))
    return x.load((*position[:dim], before, *position[dim + 1 :]), mask, identity), mask


def _in_one_kernel(b: Builder, op: str, x: StridedTensor, dim: int) -> StridedTensor:
    """On a GPU threads share a row, and what is done to it before is done there."""
    out = b.allocate()
    acc = compute_dtype(out.dtype)
    if acc is torch.bool or (op == "logaddexp" and acc is torch.float64):
        raise Refused(f"a running {op} of {acc}")
    axes, position = b.axes(out.shape, strides=out.strides)
    along = position[dim] if x.ndim else index(0)
    if along.is_const:
        return b.copy(out, x)
    if not x.shape[dim].bounds()[0]:
        raise Refused("perhaps nothing to scan")
    size = x.shape[dim]
    lone = all(s == index(1) for d, s in enumerate(x.shape) if d != dim)
    if lone and size.hint() >= LONGEST_LONE:
        raise Refused("a scan of one long row")
    if op == "sum" and acc.is_floating_point and size.is_const and size.const <= LONGEST_SUM:
        acc = torch.float64  # as on a CPU; long rows take longer by half
    value: Expr = Op(f"running_{op}", (cast(x.load(position), acc), index_expr(along)), acc)
    if op == "sum" and acc.is_floating_point:
        value = add(value, const(0, acc))  # eager begins with 0: no sum is -0.0
    stored = Store(out.buffer, out.at(position), cast(value, out.dtype))
    b.emit_in_order(axes, (along,), (stored,))
    return out


def _by_target(op: str, passes: Lowering) -> Lowering:
    def lowering(
        b: Builder, x: StridedTensor, dim: int, *, dtype: torch.dtype | None = None
    ) -> StridedTensor:
        if b.target.kind == "cuda":
            return _in_one_kernel(b, op, x, dim % max(x.ndim, 1))
        found: StridedTensor = passes(b, x, dim, dtype=dtype)
        return found

    return lowering


def _scan(
    combine: Callable[[Expr, Expr], Expr],
    identity: float,
    longest: int = LONGEST,
    floats: torch.dtype | None = None,
) -> Lowering:
    """``floats``: the dtype that rows of floats are combined in, unless it is the row's own."""

    def lowering(
        b: Builder, x: StridedTensor, dim: int, *, dtype: torch.dtype | None = None
    ) -> StridedTensor:
        out = b.allocate()
        dim %= max(x.ndim, 1)
        length, acc = _length(b, x, dim, longest), compute_dtype(out.dtype)
        if acc is torch.bool:
            raise Refused("a scan of bools")
        if floats is not None and acc.is_floating_point:
            acc = floats
        if length <= 1:
            first = const(identity, acc)
            return b.compute(out, lambda p: combine(first, cast(x.load(p), acc)))
        step, row = 1, x
        while step < length:
            target = out if 2 * step >= length else b.allocate_as(x.shape, acc)

            def value_at(position: Position, row: StridedTensor = row, step: int = step) -> Expr:
                before, _ = _back(row, position, dim, step, identity)
                return combine(cast(before, acc), cast(row.load(position), acc))

            row = b.compute(target, value_at)
            step *= 2
        return out

    return lowering


def _log_add_exp(x: Expr, y: Expr) -> Expr:
    """``log(exp(x) + exp(y))``; equal infinities are themselves."""
    low, high = minimum(x, y), maximum(x, y)
    total = add(high, apply("log1p", apply("exp", sub(low, high))))
    same = apply("and", apply("eq", low, high), apply("isinf", low))
    return where(same, x, total)


# In float64, as eager: no part of a row overflows unless the row does, and a sum to which zeros are
# added stays, though it is made up of other parts.
_running_sum = _scan(add, 0, LONGEST_SUM, torch.float64)
lowers(aten.cumsum.default)(_by_target("sum", _running_sum))
lowers(aten.logcumsumexp.default)(_by_target("logaddexp", _scan(_log_add_exp, -math.inf)))
_running_product = _by_target("prod", _scan(mul, 1))


@lowers(aten.cumprod.default)
def cumprod(
    b: Builder, x: StridedTensor, dim: int, *, dtype: torch.dtype | None = None
) -> StridedTensor:
    """Of integers on a CPU: floats far from 1 overflow (or vanish) in the product of a row's later
    part, where eager has multiplied by the zero (or the small number) at its beginning. On a GPU
    eager multiplies parts, too."""
    if b.target.kind == "cpu" and b.fake.dtype.is_floating_point:
        raise Refused("a part of a row may overflow where the row does not")
    return _running_product(b, x, dim, dtype=dtype)


def _running_extreme(op: str) -> Lowering:
    def lowering(b: Builder, x: StridedTensor, dim: int) -> tuple[StridedTensor, StridedTensor]:
        """Results: the extremes so far, and where each was last found; a NaN stays."""
        values, places = (b.allocate(fake) for fake in b.fake)
        dim %= max(x.ndim, 1)
        length = _length(b, x, dim, LONGEST_EXTREME)
        if x.dtype is torch.bool:
            raise Refused("a scan of bools")
        if length <= 1:
            b.copy(values, x)
            b.fill(places, 0)
            return values, places
        row: StridedTensor = x
        found: StridedTensor | None = None
        step = 1
        while step < length:
            last = 2 * step >= length
            to = values if last else b.allocate_as(x.shape, x.dtype)
            at = places if last else b.allocate_as(x.shape, torch.int64)
            _extreme_pass(b, op, dim, step, (row, found), (to, at))
            row, found, step = to, at, 2 * step
        return values, places

    return lowering


def _extreme_pass(
    b: Builder,
    op: str,
    dim: int,
    step: int,
    source: tuple[StridedTensor, StridedTensor | None],
    target: tuple[StridedTensor, StridedTensor],
) -> None:
    """One pass over (values, places); no places yet: every element is where it is."""
    row, found = source
    axes, position = b.axes(row.shape, strides=target[0].strides)
    extreme = lowest(row.dtype) if op == "max" else largest(row.dtype)
    loaded, there = _back(row, position, dim, step, extreme)
    old, new = (cast(v, compute_dtype(row.dtype)) for v in (loaded, row.load(position)))
    newer = apply("ge" if op == "max" else "le", new, old)
    if row.dtype.is_floating_point:
        newer = apply("and", newer, apply("not", apply("isnan", old)))
        newer = apply("or", newer, apply("isnan", new))
    if there is not None:
        newer = apply("or", newer, apply("not", there))
    if found is None:
        here: Expr = index_expr(position[dim])
        before = sub(here, const(step, torch.int64))
    else:
        here, (before, _) = found.load(position), _back(found, position, dim, step, 0)
    value = where(newer, new, old)
    b.emit(
        axes,
        (store(target[0], position, value), store(target[1], position, where(newer, here, before))),
    )


lowers(aten.cummax.default)(_running_extreme("max"))
lowers(aten.cummin.default)(_running_extreme("min"))
