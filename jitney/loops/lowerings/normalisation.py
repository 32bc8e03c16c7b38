"""Softmax and the norms: one nest per row, its reductions first, then a loop of stores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Expr, Stmt
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    add,
    apply,
    as_expr,
    cast,
    compute_dtype,
    const,
    div,
    mul,
    sub,
)
from jitney.loops.lowerings.reductions import (
    Split,
    inverse_spread,
    moments,
    reduced_dims,
    split,
    store,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
SizeList = Sequence[int | Index]


def _rows(b: Builder, x: StridedTensor, dims: int | Sequence[int], out: StridedTensor) -> Split:
    return split(b, x, reduced_dims(x.ndim, dims), True, out)


def _check_floats(x: StridedTensor) -> None:
    if not x.dtype.is_floating_point:
        raise Refused("eager takes no integers, but for no elements")


@lowers(aten._softmax, aten._safe_softmax)
def softmax(
    b: Builder, x: StridedTensor, dim: int, half_to_float: bool | torch.dtype | None = None
) -> StridedTensor:
    """``exp(x - max) / sum(exp(x - max))``; of a row of -inf ``_safe_softmax`` gives zeros."""
    out = b.allocate()
    _check_floats(x)
    safe = b.node.target is aten._safe_softmax.default
    s = _rows(b, x, dim, out)
    value = cast(x.load(s.source), compute_dtype(out.dtype))
    largest, top = b.reduce(s.reduced, "max", value)
    if safe:  # a row of -inf gives zeros
        infinite = apply("eq", top, const(float("-inf"), top.dtype))
        hidden, shift = b.let("top", apply("where", infinite, const(0, top.dtype), top))
        exponent = apply("exp", sub(value, shift))
        sums, total = b.reduce(s.reduced, "sum", exponent)
        zero = const(0, top.dtype)
        result: Expr = apply("where", infinite, zero, div(exponent, total))
        statements: list[Stmt] = [largest, hidden, sums]
    else:
        exponent = apply("exp", sub(value, top))
        sums, total = b.reduce(s.reduced, "sum", exponent)
        result = div(exponent, total)
        statements = [largest, sums]
    b.emit(s.kept, (*statements, *b.loop(s.reduced, (store(out, s.source, result),))))
    return out


@lowers(aten._log_softmax)
def log_softmax(b: Builder, x: StridedTensor, dim: int, half_to_float: bool) -> StridedTensor:
    """``x - max - log(sum(exp(x - max)))``; refused for integers, as `softmax`."""
    out = b.allocate()
    _check_floats(x)
    s = _rows(b, x, dim, out)
    value = cast(x.load(s.source), compute_dtype(out.dtype))
    largest, top = b.reduce(s.reduced, "max", value)
    sums, total = b.reduce(s.reduced, "sum", apply("exp", sub(value, top)))
    named, logarithm = b.let("log", apply("log", total))
    result = sub(sub(value, top), logarithm)
    body = (largest, sums, named)
    b.emit(s.kept, (*body, *b.loop(s.reduced, (store(out, s.source, result),))))
    return out


@lowers(aten._softmax_backward_data, aten._log_softmax_backward_data)
def softmax_backward(
    b: Builder, grad: StridedTensor, y: StridedTensor, dim: int, input_dtype: torch.dtype
) -> StridedTensor:
    """``y * (grad - sum(grad * y))``; of the logarithm ``grad - exp(y) * sum(grad)``."""
    out = b.allocate()
    s = _rows(b, y, dim, out)
    acc = compute_dtype(y.dtype)
    g, value = cast(grad.load(s.source), acc), cast(y.load(s.source), acc)
    of_logarithm = b.node.target is aten._log_softmax_backward_data.default
    sums, total = b.reduce(s.reduced, "sum", g if of_logarithm else mul(g, value))
    if of_logarithm:
        result = sub(g, mul(apply("exp", value), total))
    else:
        result = mul(value, sub(g, total))
    b.emit(s.kept, (sums, *b.loop(s.reduced, (store(out, s.source, result),))))
    return out


# ---------------------------------------------------------------- layer norm


def _affine(
    value: Expr, weight: StridedTensor | None, bias: StridedTensor | None, position: Position
) -> Expr:
    """``value * weight[position] + bias[position]`` with what is there."""
    if weight is not None:
        value = mul(value, cast(weight.load(position), value.dtype))
    return value if bias is None else add(value, cast(bias.load(position), value.dtype))


@lowers(aten.native_layer_norm)
def layer_norm(
    b: Builder,
    x: StridedTensor,
    normalized_shape: SizeList,
    weight: StridedTensor | None,
    bias: StridedTensor | None,
    eps: float,
) -> tuple[StridedTensor, StridedTensor, StridedTensor]:
    """Results: output, mean and 1 / std of each row."""
    out, mean, rstd = (b.allocate(fake) for fake in b.fake)
    first = x.ndim - len(normalized_shape)
    s = _rows(b, x, range(first, x.ndim), out)
    value = cast(x.load(s.source), compute_dtype(x.dtype))
    body, centre, inverse = _standardise(b, s, value, eps)
    if b.used(1):
        body.append(store(mean, s.result, centre))
    if b.used(2):
        body.append(store(rstd, s.result, inverse))
    if b.used(0):
        normal = mul(sub(value, centre), inverse)
        normal = _affine(normal, weight, bias, s.source[first:])
        if bias is None:  # eager adds a zero: none is negative
            normal = add(normal, const(0, normal.dtype))
        body.extend(b.loop(s.reduced, (store(out, s.source, normal),)))
    b.emit(s.kept, body)
    return out, mean, rstd


def _standardise(b: Builder, s: Split, value: Expr, eps: float) -> tuple[list[Stmt], Expr, Expr]:
    """Statements for the mean and ``rsqrt(var + eps)`` over the reduced axes."""
    body, centre, squares = moments(b, s.reduced, value, s.count)
    named, inverse = inverse_spread(b, squares, s.count, eps)
    return [*body, named], centre, inverse


@lowers(aten.native_layer_norm_backward)
def layer_norm_backward(
    b: Builder,
    grad: StridedTensor,
    x: StridedTensor,
    normalized_shape: SizeList,
    mean: StridedTensor,
    rstd: StridedTensor,
    weight: StridedTensor | None,
    bias: StridedTensor | None,
    mask: Sequence[bool],
) -> tuple[StridedTensor | None, ...]:
    """Results: gradients of x (by rows) and of weight and bias (by columns), where asked."""
    asked = zip(b.fake, mask, strict=True)
    outs = [b.allocate(fake) if fake is not None and m else None for fake, m in asked]
    first = x.ndim - len(normalized_shape)
    if outs[0] is not None:
        _layer_norm_input(b, outs[0], grad, x, mean, rstd, weight, first)
    if outs[1] is not None or outs[2] is not None:
        _layer_norm_parameters(b, outs[1], outs[2], grad, x, mean, rstd, first)
    return tuple(outs)


def _layer_norm_input(
    b: Builder,
    out: StridedTensor,
    grad: StridedTensor,
    x: StridedTensor,
    mean: StridedTensor,
    rstd: StridedTensor,
    weight: StridedTensor | None,
    first: int,
) -> None:
    """``rstd * (g w - mean(g w) - xhat mean(g w xhat))`` for each row."""
    s = _rows(b, x, range(first, x.ndim), out)
    acc = compute_dtype(x.dtype)
    inverse = cast(rstd.load(s.result), acc)
    centred = sub(cast(x.load(s.source), acc), cast(mean.load(s.result), acc))
    normal = mul(centred, inverse)
    g = _affine(cast(grad.load(s.source), acc), weight, None, s.source[first:])
    sums, (plain, weighted) = b.reduce_all(s.reduced, (("sum", g), ("sum", mul(g, normal))))
    count = as_expr(s.count, acc)
    result = sub(sub(g, div(plain, count)), mul(normal, div(weighted, count)))
    b.emit(s.kept, (*sums, *b.loop(s.reduced, (store(out, s.source, mul(result, inverse)),))))


def _layer_norm_parameters(
    b: Builder,
    d_weight: StridedTensor | None,
    d_bias: StridedTensor | None,
    grad: StridedTensor,
    x: StridedTensor,
    mean: StridedTensor,
    rstd: StridedTensor,
    first: int,
) -> None:
    """Column sums of ``g xhat`` and of ``g``."""
    shaped = d_weight if d_weight is not None else d_bias
    assert shaped is not None
    kept, kept_at = b.axes(shaped.shape, "i", shaped.strides)
    reduced, reduced_at = b.axes(x.shape[:first], "r", x.strides[:first])
    position = (*reduced_at, *kept_at)
    row = (*reduced_at, *(index(0) for _ in kept_at))
    acc = compute_dtype(x.dtype)
    g = cast(grad.load(position), acc)
    centred = sub(cast(x.load(position), acc), cast(mean.load(row), acc))
    normal = mul(centred, cast(rstd.load(row), acc))
    asked = [(out, v) for out, v in ((d_weight, mul(g, normal)), (d_bias, g)) if out is not None]
    sums, totals = b.reduce_all(reduced, [("sum", value) for _, value in asked])
    stores = [store(out, kept_at, v) for (out, _), v in zip(asked, totals, strict=True)]
    b.emit(kept, (*sums, *stores))
