"""Negative log likelihood, forward and backward."""

from __future__ import annotations

import torch

from jitney.loops.index import Index, index, is_empty
from jitney.loops.ir import Expr, Let
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.check_range import check_range
from jitney.loops.lowerings.expressions import (
    apply,
    cast,
    compute_dtype,
    const,
    div,
    index_expr,
    mul,
    where,
)
from jitney.loops.lowerings.reductions import store
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Maybe = StridedTensor | None
NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for `reduction`


def _class_dim(x: StridedTensor) -> int:
    return 0 if x.ndim == 1 else 1


def _weighted(
    b: Builder, x: StridedTensor, target: StridedTensor, weight: Maybe, ignore: int, at: Position
) -> tuple[tuple[Let, ...], Expr, Expr]:
    """Lets for a target class, the loss at it and its weight: zero where it is ignored, whatever
    is there."""
    acc = compute_dtype(x.dtype)
    loaded = cast(target.load(at if target.ndim else ()), torch.int64)
    ignored = apply("eq", loaded, const(ignore, torch.int64))
    safe = where(ignored, const(0, torch.int64), loaded)
    lets, chosen = b.let_index(safe, x.shape[_class_dim(x)], f"{b.node.name}_class")
    factor: Expr = const(1, acc) if weight is None else cast(weight.load((chosen,)), acc)
    loss = mul(apply("neg", cast(x.load(_place(x, at, chosen)), acc)), factor)
    none = const(0, acc)
    return lets, where(ignored, none, loss), where(ignored, none, factor)


def _place(x: StridedTensor, at: Position, chosen: Index) -> Position:
    return (chosen,) if x.ndim == 1 else (at[0], chosen, *at[1:])


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    b: Builder,
    x: StridedTensor,
    target: StridedTensor,
    weight: Maybe,
    reduction: int,
    ignore_index: int | Index,
) -> tuple[StridedTensor, StridedTensor]:
    """Results: the loss, and the total weight of the targets that count."""
    loss, total = (b.allocate(fake) for fake in b.fake)
    if not isinstance(ignore_index, int):
        raise Refused("a symbolic class to ignore")
    if is_empty(x.shape):
        raise Refused("a loss of nothing")
    shape = target.shape if target.ndim else (index(1),)
    classes = x.shape[_class_dim(x)]
    check_range(b, target, classes, wraps=False, touched=shape, ignored=ignore_index)
    reduced = reduction != NONE or x.ndim == 1
    axes, at = b.axes(shape, "r" if reduced else "i")
    lets, value, factor = _weighted(b, x, target, weight, ignore_index, at)
    if not reduced:
        b.emit(axes, (*lets, store(loss, at, value)))
        b.fill(total, 0)
        return loss, total
    sums, (summed, counted) = b.reduce_all(axes, (("sum", value), ("sum", factor)), lets)
    result = div(summed, counted) if reduction == MEAN else summed
    position: Position = (index(0),) * loss.ndim
    written = counted if reduction != NONE else const(0, factor.dtype)
    b.emit((), (*sums, store(loss, position, result), store(total, (), written)))
    return loss, total


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: StridedTensor,
    x: StridedTensor,
    target: StridedTensor,
    weight: Maybe,
    reduction: int,
    ignore_index: int | Index,
    total_weight: StridedTensor,
) -> StridedTensor:
    """``-grad * weight`` at each target's class, zero elsewhere."""
    out = b.allocate()
    if not isinstance(ignore_index, int):
        raise Refused("a symbolic class to ignore")
    acc = compute_dtype(x.dtype)
    dim = _class_dim(x)

    def value_at(position: Position) -> Expr:
        at = (*position[:dim], *position[dim + 1 :]) if x.ndim > 1 else ()
        wanted = cast(target.load(at if target.ndim else ()), torch.int64)
        here = apply("eq", wanted, index_expr(position[dim]))
        kept = apply("ne", wanted, const(ignore_index, torch.int64))
        g = cast(grad.load(at if grad.ndim else ()), acc)
        if reduction == MEAN:
            g = div(g, cast(total_weight.load(()), acc))
        if weight is not None:
            g = mul(g, cast(weight.load((position[dim],)), acc))
        return where(apply("and", here, kept), apply("neg", g), const(0, acc))

    return b.compute(out, value_at)
