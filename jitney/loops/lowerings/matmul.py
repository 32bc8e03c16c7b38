"""Matrix products: `Gemm` templates for floats, plain reductions for integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from jitney.loops.index import Axis, index, is_empty
from jitney.loops.ir import Expr, Gemm, Ref, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    Operand,
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    mul,
    where,
)
from jitney.loops.lowerings.registry import lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Epilogue = Callable[[Expr, Position], Expr]


def emit_product(
    b: Builder, out: StridedTensor, x: StridedTensor, y: StridedTensor, epilogue: Epilogue
) -> StridedTensor:
    """``out[…, m, n] = epilogue(sum_k x[…, m, k] * y[…, k, n])``, leading dimensions equal.

    ``epilogue`` gets the sum in the compute dtype and the position in ``out``.
    """
    acc = compute_dtype(x.dtype)
    inner = x.shape[-1] if x.shape[-1].is_const else y.shape[-2]  # guarded: they are equal
    empty = is_empty(out.shape)
    if empty:
        return out
    if inner.is_const and inner.const == 0:
        return b.compute(out, lambda p: epilogue(const(0, acc), p))
    if not acc.is_floating_point:
        return _integer_product(b, out, x, y, epilogue)
    batch, leading = b.axes(out.shape[:-2], "b", out.strides[:-2])
    m, n, k = Axis("m", out.shape[-2]), Axis("n", out.shape[-1]), Axis("k", inner)
    position = (*leading, index(m), index(n))
    value = cast(epilogue(Ref("acc", acc), position), out.dtype)
    b.nodes.append(
        Gemm(
            b.fresh(f"{b.node.name}_gemm"),
            batch,
            m,
            n,
            k,
            x.access((*leading, m, k)),
            y.access((*leading, k, n)),
            acc,
            (Store(out.buffer, out.at(position), value),),
            b_is_parameter=b.is_parameter(y.buffer),
            origins=(b.node.name,),
        )
    )
    return out


def _integer_product(
    b: Builder, out: StridedTensor, x: StridedTensor, y: StridedTensor, epilogue: Epilogue
) -> StridedTensor:
    axes, position = b.axes(out.shape, strides=out.strides)
    reduced, (k,) = b.axes(x.shape[-1:], "r")
    *leading, m, n = position
    value = mul(x.load((*leading, m, k)), y.load((*leading, k, n)))
    reduce, total = b.reduce(reduced, "sum", value)
    stored = cast(epilogue(total, position), out.dtype)
    b.emit(axes, (reduce, Store(out.buffer, out.at(position), stored)))
    return out


def plain(total: Expr, _position: Position) -> Expr:
    """The epilogue that changes nothing."""
    return total


def _scaled(bias: StridedTensor, beta: Operand, alpha: Operand) -> Epilogue:
    """``alpha * total + beta * bias``; a zero ignores what it multiplies, NaNs included."""

    def epilogue(total: Expr, position: Position) -> Expr:
        factor = as_expr(alpha, total.dtype)
        total = const(0, total.dtype) if _is_zero(alpha) else mul(total, factor)
        if _is_zero(beta):
            return total
        added, times = cast(bias.load(position), total.dtype), as_expr(beta, total.dtype)
        if not isinstance(beta, int | float):  # it changes from call to call, to zero too
            zero = const(0, total.dtype)
            added = where(apply("eq", times, zero), zero, added)
        return add(total, mul(added, times))

    return epilogue


def _is_zero(factor: Operand) -> bool:
    return isinstance(factor, int | float) and factor == 0


@lowers(aten.mm.default, aten.bmm.default)
def product(b: Builder, x: StridedTensor, y: StridedTensor) -> StridedTensor:
    """``x @ y``, in the compute dtype; of integers a plain reduction."""
    return emit_product(b, b.allocate(), x, y, plain)


@lowers(aten.addmm.default, aten.baddbmm.default)
def product_added(
    b: Builder,
    bias: StridedTensor,
    x: StridedTensor,
    y: StridedTensor,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> StridedTensor:
    """``beta * bias + alpha * (x @ y)``: `_scaled`."""
    return emit_product(b, b.allocate(), x, y, _scaled(bias, beta, alpha))


@lowers(aten.linear.default)
def linear(
    b: Builder, x: StridedTensor, weight: StridedTensor, bias: StridedTensor | None = None
) -> StridedTensor:
    """``x @ weight.T + bias``; leading dimensions of x run together where memory allows."""
    out = b.allocate()
    rows, results = _rows(x), _rows(out)
    if rows is None or results is None:
        rows, results = _one_batch(x), _one_batch(out)
        weights = weight.transpose().expand((*rows.shape[:-2], *weight.transpose().shape))
    else:
        weights = weight.transpose()
    epilogue = plain if bias is None else _scaled(bias, 1, 1)
    emit_product(b, results, rows, weights, epilogue)
    return out


def _one_batch(x: StridedTensor) -> StridedTensor:
    return x if x.ndim >= 2 else x.unsqueeze(0)


def _rows(x: StridedTensor) -> StridedTensor | None:
    """All but the last dimension as one; None where no single stride walks them."""
    if x.ndim == 1:
        return x.unsqueeze(0)
    size, stride = index(1), index(0)
    for extent, step in reversed(list(zip(x.shape[:-1], x.strides[:-1], strict=True))):
        if extent.is_const and extent.const == 1:
            continue
        if size == index(1):
            size, stride = extent, step
        elif step == stride * size:
            size = size * extent
        else:
            return None
    return replace(x, shape=(size, x.shape[-1]), strides=(stride, x.strides[-1]))


@lowers(aten.mv.default)
def matrix_vector(b: Builder, x: StridedTensor, y: StridedTensor) -> StridedTensor:
    """``x @ y`` for [m, k] and [k]."""
    return _matrix_vector(b, x, y, plain)


@lowers(aten.addmv.default)
def matrix_vector_added(
    b: Builder,
    bias: StridedTensor,
    x: StridedTensor,
    y: StridedTensor,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> StridedTensor:
    """``beta * bias + alpha * (x @ y)`` for [m, k] and [k]: `_scaled`."""
    return _matrix_vector(b, x, y, _scaled(bias, beta, alpha))


def _matrix_vector(
    b: Builder, x: StridedTensor, y: StridedTensor, epilogue: Epilogue
) -> StridedTensor:
    """The vector as the one row of A: a GEMV whose matrix is read as it lies."""
    out = b.allocate()
    emit_product(b, out.unsqueeze(0), y.unsqueeze(0), x.transpose(), epilogue)
    return out


@lowers(aten.dot.default, aten.vdot.default)
def dot(b: Builder, x: StridedTensor, y: StridedTensor) -> StridedTensor:
    """A sum of products in the compute dtype, 0 of nothing; of reals ``vdot`` is the same."""
    out = b.allocate()
    acc = compute_dtype(out.dtype)
    if x.shape[0].is_const and x.shape[0].const == 0:
        return b.fill(out, 0)
    axes, position = b.axes(x.shape, "r")
    value = mul(cast(x.load(position), acc), cast(y.load(position), acc))
    reduce, total = b.reduce(axes, "sum", value)
    b.emit((), (reduce, Store(out.buffer, out.at(()), cast(total, out.dtype))))
    return out
