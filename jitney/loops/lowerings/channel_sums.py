"""Sums by channel over samples and places, for batch norm and the gradients of biases.

On a CPU they are as exact as eager's, which sums in double precision: runs of places are summed in
single precision, in parallel and while they are in the cache, and the runs' sums in double. The
rounding of a sum in single precision would shift every value of a batch norm, and with it change
the sign of values near a ReLU's zero, and so whole elements of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from jitney.loops.index import index
from jitney.loops.ir import Expr, Reduce, Reduction, Ref, Stmt
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import add, as_expr, cast, compute_dtype, div, mul, sub
from jitney.loops.lowerings.reductions import Split, moments, split, store
from jitney.loops.lowerings.strided import StridedTensor

#: Places of a run at most, where a step along it is far in memory and where it is one.
MOST_ACROSS, MOST_ALONG = 512, 8192
#: Places below which a run is not summed by itself.
FEWEST = 16

Terms = Callable[[Position, torch.dtype], Sequence[Expr]]


def channels(b: Builder, x: StridedTensor, like: StridedTensor) -> Split:
    """Axes for reducing everything but dimension 1 into a vector of channels."""
    return split(b, x, [d for d in range(x.ndim) if d != 1], False, like)


def sums_by_channel(
    b: Builder, x: StridedTensor, like: StridedTensor, terms: Terms
) -> tuple[Sequence[Stmt], Sequence[Expr]]:
    """Statements, over the axis of ``like``, for the sums of ``terms(position in x, dtype)``."""
    wide = _sum_dtype(b, x.dtype)
    runs = _runs(b, x)
    if runs is None:
        over = channels(b, x, like)
        return b.reduce_all(over.reduced, [("sum", t) for t in terms(over.source, wide)])
    values = terms(runs.source, compute_dtype(x.dtype))
    parts = _stored(b, x, runs, *b.reduce_all(runs.reduced, [("sum", v) for v in values]))
    over = channels(b, parts[0], like)
    wanted = [("sum", cast(part.load(over.source), wide)) for part in parts]
    return b.reduce_all(over.reduced, wanted)


def moments_by_channel(
    b: Builder, x: StridedTensor, like: StridedTensor
) -> tuple[list[Stmt], Expr, Expr]:
    """Statements for the mean and the sum of squared deviations by channel.

    A GPU takes both in one pass over memory; a CPU those of runs, which it reads once, put together
    as Chan, Golub and LeVeque have it. A run's mean is a value near it (made of differences from
    the first element: no digits are lost far from zero) and, apart, the mean of what is left: in
    single precision it would be off by a rounding of the values, not of the mean.
    """
    s, acc = channels(b, x, like), compute_dtype(x.dtype)
    if b.target.kind == "cuda" and s.reduced:
        value = cast(x.load(s.source), acc)
        names = tuple(b.fresh(f"{b.node.name}_{part}") for part in ("mean", "squares", "count"))
        reduce = Reduce(s.reduced, (), (Reduction(names, "welford", value, acc),))
        return [reduce], Ref(names[0], acc), Ref(names[1], acc)
    wide = _sum_dtype(b, x.dtype)
    runs = _runs(b, x)
    if runs is None:
        return moments(b, s.reduced, cast(x.load(s.source), wide), s.count)
    value, length = cast(x.load(runs.source), acc), as_expr(runs.count, acc)
    first = cast(x.load((*runs.result, *[index(0)] * (x.ndim - len(runs.result)))), acc)
    rough, summed = b.reduce(runs.reduced, "sum", sub(value, first))
    named, centre = b.let("centre", add(first, div(summed, length)))
    away = sub(value, centre)
    near, (left, inside) = b.reduce_all(runs.reduced, [("sum", away), ("sum", mul(away, away))])
    body = (rough, named, *near)
    parts = _stored(b, x, runs, body, (centre, left, inside))
    over, length = channels(b, parts[0], like), as_expr(runs.count, wide)
    start, rest, spread = (cast(part.load(over.source), wide) for part in parts)
    own = add(start, div(rest, length))
    sums, summed = b.reduce(over.reduced, "sum", own)
    named, mean = b.let("mean", div(summed, as_expr(over.count, wide)))
    away = sub(own, mean)
    spread = sub(spread, div(mul(rest, rest), length))  # about the run's own mean
    squares, total = b.reduce(over.reduced, "sum", add(spread, mul(mul(away, away), length)))
    return [sums, named, squares], mean, total


def _sum_dtype(b: Builder, dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if b.target.kind == "cpu" else compute_dtype(dtype)


def _runs(b: Builder, x: StridedTensor) -> Split | None:
    """Axes for reducing the last dimensions of x [n, c, …], a run of places, by themselves; None
    where they are too few, and on a GPU."""
    most = MOST_ACROSS if x.strides[1] == index(1) else MOST_ALONG
    first, count = x.ndim, 1
    while first > 2 and x.shape[first - 1].is_const and count * int(x.shape[first - 1]) <= most:
        first, count = first - 1, count * int(x.shape[first - 1])
    if count < FEWEST or b.target.kind == "cuda":
        return None
    like = StridedTensor("", x.dtype, x.shape[:first], x.strides[:first])
    return split(b, x, range(first, x.ndim), False, like)


def _stored(
    b: Builder, x: StridedTensor, runs: Split, body: Sequence[Stmt], results: Sequence[Expr]
) -> tuple[StridedTensor, ...]:
    """A nest over the runs of x that stores their ``results``, each [n, c, …], channels last."""
    n, c, *others = x.shape[: len(runs.result)]
    order = (0, len(others) + 1, *range(1, len(others) + 1))
    parts = [b.allocate_as((n, *others, c), r.dtype).permute(order) for r in results]
    stores = [store(part, runs.result, r) for part, r in zip(parts, results, strict=True)]
    b.emit(runs.kept, (*body, *stores))
    return tuple(parts)
