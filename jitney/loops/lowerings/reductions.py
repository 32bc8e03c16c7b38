"""Reductions: sums, extremes, moments and norms over any set of dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Expr, Let, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    computed,
    const,
    div,
    maximum,
    mul,
    sub,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
prims = torch.ops.prims
Dims = int | Sequence[int] | None


@dataclass(frozen=True)
class Split:
    """A tensor's dimensions, kept and reduced: axes of each, and where an element is.

    ``source``: position in the tensor over both kinds of axes. ``count``: elements reduced.
    """

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    source: Position
    result: Position
    count: Index


def reduced_dims(ndim: int, dims: Dims) -> tuple[int, ...]:
    """Dimensions as non-negative numbers; None or nothing is all of them."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    if ndim == 0:
        return ()
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({d % ndim for d in listed}))


def split(
    b: Builder, x: StridedTensor, dims: Sequence[int], keepdim: bool, out: StridedTensor
) -> Split:
    """Axes for reducing ``x`` over ``dims`` into ``out``."""
    kept_dims = [d for d in range(x.ndim) if d not in dims]
    kept_sizes = [x.shape[d] for d in kept_dims]
    out_strides = [out.strides[d] for d in kept_dims] if keepdim else list(out.strides)
    kept, kept_at = b.axes(kept_sizes, "i", out_strides)
    reduced, reduced_at = b.axes([x.shape[d] for d in dims], "r", [x.strides[d] for d in dims])
    source: list[Index] = [Index()] * x.ndim
    for d, at in zip(kept_dims, kept_at, strict=True):
        source[d] = at
    for d, at in zip(dims, reduced_at, strict=True):
        source[d] = at
    result = list(kept_at)
    if keepdim:
        result = [Index() if d in dims else source[d] for d in range(x.ndim)]
    count = Index((), 1)
    for d in dims:
        count = count * x.shape[d]
    return Split(kept, reduced, tuple(source), tuple(result), count)


def store(out: StridedTensor, position: Position, value: Expr) -> Store:
    """``out[position] = value``, converted."""
    return Store(out.buffer, out.at(position), cast(value, out.dtype))


def reduction(
    b: Builder,
    x: StridedTensor,
    dims: Dims,
    keepdim: bool,
    op: str,
    dtype: torch.dtype,
    element: Callable[[Expr], Expr] = lambda value: value,
    finish: Callable[[Expr, Index], Expr] = lambda total, count: total,
    empty: bool | int | float = 0,
) -> StridedTensor:
    """One reduction of ``element(x)`` in ``dtype``, then ``finish(total, count)`` stored.

    ``empty`` fills the result when no element is reduced.
    """
    out = b.allocate()
    over = reduced_dims(x.ndim, dims)
    s = split(b, x, over, keepdim and out.ndim == x.ndim, out)
    if s.count.is_const and s.count.const == 0:
        return b.fill(out, empty)
    value = element(cast(x.load(s.source), dtype))
    reduce, result = b.reduce(s.reduced, op, value)
    total: Expr = result
    if op == "sum" and s.count == index(1) and dtype.is_floating_point:
        total = add(const(0, dtype), total)  # a sum begins with 0: that of -0.0 is 0.0
    b.emit(s.kept, (reduce, store(out, s.result, finish(total, s.count))))
    return out


def _sum_dtype(b: Builder) -> torch.dtype:
    return compute_dtype(b.fake.dtype)


def _accumulated(op: str, empty: int) -> Callable[..., StridedTensor]:
    def lowering(
        b: Builder, x: StridedTensor, dim: Dims = None, keepdim: bool = False, **_dtype: Any
    ) -> StridedTensor:
        return reduction(b, x, dim, keepdim, op, _sum_dtype(b), empty=empty)

    return lowering


lowers(aten.sum, prims.sum)(_accumulated("sum", 0))
lowers(aten.prod)(_accumulated("prod", 1))


@lowers(aten.mean)
def mean(
    b: Builder,
    x: StridedTensor,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> StridedTensor:
    """The sum divided by the count, in the compute dtype of the result; NaN of nothing."""
    acc = _sum_dtype(b)
    return reduction(
        b, x, dim, keepdim, "sum", acc, finish=lambda t, n: div(t, as_expr(n, acc)), empty=math.nan
    )


def _extreme(op: str) -> Callable[..., StridedTensor]:
    def lowering(b: Builder, x: StridedTensor, dim: Dims = None, keepdim: bool = False) -> Any:
        if any(size.is_const and size.const == 0 for size in x.shape):
            raise Refused("eager must say of which nothing there is a largest")
        if x.dtype is torch.bool:
            logical = "any" if op == "max" else "all"
            return reduction(b, x, dim, keepdim, logical, torch.bool)
        return reduction(b, x, dim, keepdim, op, compute_dtype(x.dtype))

    return lowering


lowers(aten.amax, prims.amax)(_extreme("max"))
lowers(aten.amin, prims.amin)(_extreme("min"))
lowers(aten.max.default)(_extreme("max"))
lowers(aten.min.default)(_extreme("min"))


def _check_dims(dim: Dims) -> None:
    """Refuses to reduce no dimensions, which these ops do not take for all of them."""
    if isinstance(dim, list | tuple) and not dim:
        raise Refused("a reduction over no dimension")


@lowers(aten.any, aten._is_any_true)
def any_true(
    b: Builder, x: StridedTensor, dim: Dims = None, keepdim: bool = False
) -> StridedTensor:
    """False of nothing. Refused for an empty list of dimensions."""
    _check_dims(dim)
    return reduction(b, x, dim, keepdim, "any", torch.bool, empty=False)


@lowers(aten.all, aten._is_all_true)
def all_true(
    b: Builder, x: StridedTensor, dim: Dims = None, keepdim: bool = False
) -> StridedTensor:
    """True of nothing. Refused for an empty list of dimensions."""
    _check_dims(dim)
    return reduction(b, x, dim, keepdim, "all", torch.bool, empty=True)


@lowers(aten.count_nonzero)
def count_nonzero(b: Builder, x: StridedTensor, dim: Dims = None) -> StridedTensor:
    """A sum of int64 ones; NaN counts."""

    def element(value: Expr) -> Expr:
        return cast(value, torch.int64)

    return reduction(b, x, dim, False, "sum", torch.bool, element)


def _position_of(op: str) -> Callable[..., StridedTensor]:
    def lowering(
        b: Builder, x: StridedTensor, dim: int | None = None, keepdim: bool = False
    ) -> StridedTensor:
        dims = tuple(range(x.ndim)) if dim is None else reduced_dims(x.ndim, dim)
        out = b.allocate()
        return _store_extreme(b, x, dims, keepdim and x.ndim > 0, op, None, out)

    return lowering


lowers(aten.argmax)(_position_of("max"))
lowers(aten.argmin)(_position_of("min"))


def _store_extreme(
    b: Builder,
    x: StridedTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    op: str,
    values: StridedTensor | None,
    positions: StridedTensor,
) -> StridedTensor:
    """One nest for an extreme's position and, if asked, its value."""
    s = split(b, x, dims, keepdim and positions.ndim == x.ndim, positions)
    row_major = [s.source[d] for d in dims]
    reduced = tuple(axis for at in row_major for axis in s.reduced if axis in at.atoms())
    value = computed(x.load(s.source))
    if value.dtype is torch.bool:
        value = cast(value, torch.uint8)
    body: list[Stmt] = []
    if values is not None:
        reduce, best = b.reduce(reduced, op, value)
        body += [reduce, store(values, s.result, best)]
    reduce, where_best = b.reduce(reduced, f"arg{op}", value)
    body += [reduce, store(positions, s.result, where_best)]
    b.emit(s.kept, body)
    return positions


def _with_position(op: str) -> Callable[..., tuple[StridedTensor, StridedTensor]]:
    def lowering(
        b: Builder, x: StridedTensor, dim: int, keepdim: bool = False
    ) -> tuple[StridedTensor, StridedTensor]:
        values, positions = (b.allocate(fake) for fake in b.fake)
        if not b.used(1):
            reduction_into(b, x, reduced_dims(x.ndim, dim), keepdim, op, values)
        else:
            _store_extreme(b, x, reduced_dims(x.ndim, dim), keepdim, op, values, positions)
        return values, positions

    return lowering


def reduction_into(
    b: Builder, x: StridedTensor, dims: tuple[int, ...], keepdim: bool, op: str, out: StridedTensor
) -> None:
    """A max or min of ``x`` into a buffer that exists."""
    s = split(b, x, dims, keepdim and out.ndim == x.ndim, out)
    value = computed(x.load(s.source))
    reduce, best = b.reduce(
        s.reduced, op, cast(value, torch.uint8) if value.dtype is torch.bool else value
    )
    b.emit(s.kept, (reduce, store(out, s.result, best)))


lowers(aten.max.dim)(_with_position("max"))
lowers(aten.min.dim)(_with_position("min"))


@lowers(aten.aminmax)
def both_extremes(
    b: Builder, x: StridedTensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[StridedTensor, StridedTensor]:
    """(least, greatest), a nest each; NaN wins."""
    low, high = (b.allocate(fake) for fake in b.fake)
    dims = reduced_dims(x.ndim, dim)
    reduction_into(b, x, dims, keepdim, "min", low)
    reduction_into(b, x, dims, keepdim, "max", high)
    return low, high


# ---------------------------------------------------------------- moments


def moments(
    b: Builder, reduced: tuple[Axis, ...], value: Expr, count: Index
) -> tuple[list[Stmt], Expr, Expr]:
    """Statements for the mean and the sum of squared deviations: two passes, no cancellation."""
    acc = value.dtype
    first, summed = b.reduce(reduced, "sum", value)
    mean, centre = b.let("mean", div(summed, as_expr(count, acc)))
    deviation = sub(value, centre)
    second, squares = b.reduce(reduced, "sum", mul(deviation, deviation))
    return [first, mean, second], centre, squares


def inverse_spread(b: Builder, squares: Expr, count: Index, eps: float) -> tuple[Let, Ref]:
    """``rsqrt(variance + eps)`` of that many squared deviations' sum, with a name."""
    acc = squares.dtype
    variance = div(squares, as_expr(count, acc))
    return b.let("rstd", apply("rsqrt", add(variance, const(eps, acc))))


def _variance(
    b: Builder,
    x: StridedTensor,
    dim: Dims,
    correction: Any,
    keepdim: bool,
    finish: Callable[[Expr], Expr],
    var: StridedTensor,
    average: StridedTensor | None,
) -> None:
    s = split(b, x, reduced_dims(x.ndim, dim), keepdim and var.ndim == x.ndim, var)
    if s.count.is_const and s.count.const == 0:
        for out in (var, average):
            if out is not None:
                b.fill(out, math.nan)
        return
    acc = torch.float64 if b.target.kind == "cpu" else compute_dtype(x.dtype)  # as in eager
    value = cast(x.load(s.source), acc)
    body, centre, squares = moments(b, s.reduced, value, s.count)
    correction = 1 if correction is None else correction
    divisor = sub(as_expr(s.count, acc), as_expr(correction, acc))
    divisor = maximum(divisor, const(0, acc))
    body.append(store(var, s.result, finish(div(squares, divisor))))
    if average is not None:
        if s.count != index(1):  # eager's running mean does not survive an infinity
            centre = where(apply("isnan", squares), const(math.nan, acc), centre)
        body.append(store(average, s.result, add(const(0, acc), centre)))
    b.emit(s.kept, body)


@lowers(aten.var.correction)
def var(
    b: Builder, x: StridedTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> StridedTensor:
    """Two passes, in float64 on a CPU; over ``count - correction`` (1), which is 0 at least."""
    out = b.allocate()
    _variance(b, x, dim, correction, keepdim, lambda v: v, out, None)
    return out


@lowers(aten.std.correction)
def std(
    b: Builder, x: StridedTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> StridedTensor:
    """The root of `var`."""
    out = b.allocate()
    _variance(b, x, dim, correction, keepdim, lambda v: apply("sqrt", v), out, None)
    return out


@lowers(prims.var)
def prims_var(
    b: Builder, x: StridedTensor, dims: Dims, correction: float | None = 1, **_options: Any
) -> StridedTensor:
    """`var`, without the dimensions it reduces."""
    return var(b, x, dims, correction=correction)


@lowers(aten.var_mean.correction)
def var_mean(
    b: Builder, x: StridedTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[StridedTensor, StridedTensor]:
    """(`var`, mean); the mean is NaN where the deviations are, as eager's running mean is."""
    out, average = (b.allocate(fake) for fake in b.fake)
    _variance(b, x, dim, correction, keepdim, lambda v: v, out, average)
    return out, average


@lowers(aten.std_mean.correction)
def std_mean(
    b: Builder, x: StridedTensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[StridedTensor, StridedTensor]:
    """(`std`, mean), as `var_mean`."""
    out, average = (b.allocate(fake) for fake in b.fake)
    _variance(b, x, dim, correction, keepdim, lambda v: apply("sqrt", v), out, average)
    return out, average


# ---------------------------------------------------------------- norms


def _reduces_nothing(x: StridedTensor, dim: Dims) -> bool:
    return all(x.shape[d] == index(1) for d in reduced_dims(x.ndim, dim))


@lowers(aten.linalg_vector_norm)
def vector_norm(
    b: Builder,
    x: StridedTensor,
    order: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> StridedTensor:
    """``sum(|x| ** order) ** (1 / order)``; orders 0, inf and -inf count, or take an extreme."""
    acc = compute_dtype(b.fake.dtype)
    if not isinstance(order, int | float):
        raise Refused("a norm whose order is not a literal")
    if math.isinf(order):
        op = "max" if order > 0 else "min"
        return reduction(b, x, dim, keepdim, op, acc, lambda v: apply("abs", v))
    if order == 0:
        zero = const(0, acc)

        def counted(v: Expr) -> Expr:
            return cast(apply("ne", v, zero), acc)

        return reduction(b, x, dim, keepdim, "sum", acc, counted)
    if order == 1 or _reduces_nothing(x, dim):
        return reduction(b, x, dim, keepdim, "sum", acc, lambda v: apply("abs", v))
    if order == 2:
        return reduction(
            b, x, dim, keepdim, "sum", acc, lambda v: mul(v, v), lambda t, _: apply("sqrt", t)
        )
    p, inverse = const(order, acc), const(1.0 / order, acc)
    return reduction(
        b,
        x,
        dim,
        keepdim,
        "sum",
        acc,
        lambda v: apply("pow", apply("abs", v), p),
        lambda t, _: apply("pow", t, inverse),
        empty=0 if order > 0 else math.inf,
    )


@lowers(aten.logsumexp)
def logsumexp(b: Builder, x: StridedTensor, dim: Dims, keepdim: bool = False) -> StridedTensor:
    """``log(sum(exp(x - max))) + max``, an infinite max taken as zero (as eager does)."""
    _check_dims(dim)
    out = b.allocate()
    s = split(b, x, reduced_dims(x.ndim, dim), keepdim and out.ndim == x.ndim, out)
    if s.count.is_const and s.count.const == 0:
        return b.fill(out, -math.inf)
    value = cast(x.load(s.source), compute_dtype(out.dtype))
    acc = value.dtype
    largest, top = b.reduce(s.reduced, "max", value)
    hidden, shift = b.let("shift", where(apply("isinf", top), const(0, acc), top))
    exps, summed = b.reduce(s.reduced, "sum", apply("exp", sub(value, shift)))
    b.emit(
        s.kept,
        (
            largest,
            hidden,
            exps,
            store(out, s.result, add(apply("log", summed), shift)),
        ),
    )
    return out
