"""Batch and group norm: statistics by channel or group, then a pointwise pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from jitney.loops.index import Index, floor_div, index
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.channel_sums import channels, moments_by_channel, sums_by_channel
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
from jitney.loops.lowerings.reductions import inverse_spread, moments, split, store
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten
Maybe = StridedTensor | None


def _element(tensor: StridedTensor, position: Position, dtype: torch.dtype) -> Expr:
    return cast(tensor.load(position), dtype)


def _normalised(
    b: Builder,
    out: StridedTensor,
    x: StridedTensor,
    mean: StridedTensor,
    spread: StridedTensor,
    eps: float | None,
    weight: Maybe,
    bias: Maybe,
) -> None:
    """``(x - mean) * rstd * weight + bias``; ``spread`` is a variance if ``eps`` is given.

    On a CPU, with ``eps``: ``x * scale + shift``, as eager computes it, from two vectors made
    first, so that what ends up in a convolution's epilogue is one multiply-add.
    """
    acc = compute_dtype(x.dtype)

    def scale_at(channel: Position) -> Expr:
        inverse = _inverse_spread(spread, eps, acc, channel)
        return inverse if weight is None else mul(inverse, _element(weight, channel, acc))

    if eps is not None and b.target.kind == "cpu":
        scale, shift = (b.allocate_as((x.shape[1],), acc) for _ in range(2))

        def shift_at(channel: Position) -> Expr:
            moved = mul(_element(mean, channel, acc), scale.load(channel))
            given = const(0, acc) if bias is None else _element(bias, channel, acc)
            return sub(given, moved)

        def linear_at(position: Position) -> Expr:
            factor, constant = (v.load(position[1:2]) for v in (scale, shift))
            return add(mul(_element(x, position, acc), factor), constant)

        b.compute(scale, scale_at)
        b.compute(shift, shift_at)
        b.compute(out, linear_at)
        return

    def value_at(position: Position) -> Expr:
        channel = position[1:2]
        centred = sub(_element(x, position, acc), _element(mean, channel, acc))
        value = mul(centred, scale_at(channel))
        return value if bias is None else add(value, _element(bias, channel, acc))

    b.compute(out, value_at)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    b: Builder,
    x: StridedTensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: StridedTensor,
    running_var: StridedTensor,
    momentum: float,
    eps: float,
) -> tuple[StridedTensor, ...]:
    """Results: output, and the statistics that were used, of which a CPU gives none."""
    out, mean, rstd = (b.allocate(fake) for fake in b.fake)
    _normalised(b, out, x, running_mean, running_var, eps, weight, bias)
    _hand_on(b, mean, rstd, running_mean, running_var, eps)
    return out, mean, rstd


def _hand_on(
    b: Builder,
    mean: StridedTensor,
    rstd: StridedTensor,
    running_mean: StridedTensor,
    running_var: StridedTensor,
    eps: float,
) -> None:
    """The statistics that were used, as results: nothing on a CPU, on a GPU all of them."""
    if mean.shape[0] == index(0):
        return
    b.copy(mean, running_mean)
    acc = compute_dtype(rstd.dtype)
    b.compute(rstd, lambda at: cast(_inverse_spread(running_var, eps, acc, at), rstd.dtype))


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: Builder,
    x: StridedTensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: StridedTensor,
    running_var: StridedTensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[StridedTensor, ...]:
    """Results: output, batch mean and 1 / std, and the new running mean and variance."""
    out, mean, rstd, new_mean, new_var = (b.allocate(fake) for fake in b.fake)
    if not training:
        _normalised(b, out, x, running_mean, running_var, eps, weight, bias)
        _hand_on(b, mean, rstd, running_mean, running_var, eps)
        b.copy(new_mean, running_mean)
        b.copy(new_var, running_var)
        return out, mean, rstd, new_mean, new_var
    running = (running_mean, running_var, new_mean, new_var)
    _batch_statistics(b, x, mean, rstd, eps, momentum, running)
    _normalised(b, out, x, mean, rstd, None, weight, bias)
    return out, mean, rstd, new_mean, new_var


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_stateless(
    b: Builder,
    x: StridedTensor,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[StridedTensor, ...]:
    """Results: output, batch mean and 1 / std. Refused unless it trains."""
    if not training:
        raise Refused("batch norm without statistics of any kind")
    out, mean, rstd = (b.allocate(fake) for fake in b.fake)
    _batch_statistics(b, x, mean, rstd, eps, momentum, None)
    _normalised(b, out, x, mean, rstd, None, weight, bias)
    return out, mean, rstd


@lowers(aten.native_batch_norm.default)
def batch_norm(
    b: Builder,
    x: StridedTensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[StridedTensor, ...]:
    """Results as of `batch_norm_stateless`, or, not training, of `batch_norm_inference`.
    Refused where running statistics would be updated."""
    if training:
        if running_mean is not None:
            raise Refused("running statistics are updated in place")
        return batch_norm_stateless(b, x, weight, bias, True, momentum, eps)
    assert running_mean is not None and running_var is not None
    return batch_norm_inference(b, x, weight, bias, running_mean, running_var, momentum, eps)


def _batch_statistics(
    b: Builder,
    x: StridedTensor,
    mean: StridedTensor,
    rstd: StridedTensor,
    eps: float,
    momentum: float,
    running: tuple[StridedTensor, ...] | None,
) -> None:
    s = channels(b, x, mean)
    if s.count.is_const and s.count.const == 0:
        raise Refused("statistics of nothing")
    body, centre, squares = moments_by_channel(b, x, mean)
    acc = centre.dtype
    count = as_expr(s.count, acc)
    variance = div(squares, count)
    body.append(store(mean, s.result, centre))
    body.append(store(rstd, s.result, apply("rsqrt", add(variance, const(eps, acc)))))
    if running is not None:
        old_mean, old_var, new_mean, new_var = running
        unbiased = div(squares, sub(count, const(1, acc)))
        for old, new, fresh in ((old_mean, new_mean, centre), (old_var, new_var, unbiased)):
            kept = mul(_element(old, s.result, acc), const(1.0 - momentum, acc))
            body.append(store(new, s.result, add(mul(fresh, const(momentum, acc)), kept)))
    b.emit(s.kept, body)


def _inverse_spread(
    spread: StridedTensor, eps: float | None, acc: torch.dtype, channel: Position
) -> Expr:
    """1 / sqrt(variance + eps) of a channel; ``spread`` is that already where ``eps`` is None."""
    value = _element(spread, channel, acc)
    return value if eps is None else apply("rsqrt", add(value, const(eps, acc)))


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    grad: StridedTensor,
    x: StridedTensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    mean: Maybe,
    rstd: Maybe,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    """Two sums by channel (of g, and of g times x centred), then one pointwise pass."""
    acc = compute_dtype(x.dtype)
    outs = [
        b.allocate(f) if f is not None and m else None for f, m in zip(b.fake, mask, strict=True)
    ]
    centre, spread = (mean, rstd) if train else (running_mean, running_var)
    if centre is None or spread is None:
        raise Refused("batch norm's backward without statistics")
    shift, slope = (b.allocate_as((x.shape[1],), acc) for _ in range(2))
    inverse = partial(_inverse_spread, spread, None if train else eps)
    s = channels(b, x, shift)

    def away(position: Position, dtype: torch.dtype) -> Expr:
        return sub(_element(x, position, dtype), _element(centre, position[1:2], dtype))

    def terms(position: Position, dtype: torch.dtype) -> tuple[Expr, ...]:
        g = _element(grad, position, dtype)
        return g, mul(g, away(position, dtype))

    def value_at(position: Position) -> Expr:
        channel = position[1:2]
        value = _element(grad, position, acc)
        if train:
            value = sub(value, mul(away(position, acc), slope.load(channel)))
            value = sub(value, shift.load(channel))
        scale = inverse(acc, channel)
        return mul(value, scale if weight is None else mul(scale, _element(weight, channel, acc)))

    sums, (total, dot) = sums_by_channel(b, x, shift, terms)
    scale, count = inverse(dot.dtype, s.result), as_expr(s.count, dot.dtype)
    pulled = mul(dot, scale)
    found = ((shift, div(total, count)), (slope, div(mul(pulled, scale), count)),
             (outs[1], pulled), (outs[2], total))  # fmt: skip
    b.emit(s.kept, (*sums, *(store(o, s.result, v) for o, v in found if o is not None)))
    if outs[0] is not None:
        b.compute(outs[0], value_at)
    return tuple(outs)


# ---------------------------------------------------------------- group norm


def _grouped(x: StridedTensor, groups: int) -> StridedTensor:
    """[n, c, …] seen as [n, groups, c / groups, …]."""
    size = floor_div(x.shape[1], index(groups))
    shape = (x.shape[0], index(groups), size, *x.shape[2:])
    strides = (x.strides[0], x.strides[1] * size, x.strides[1], *x.strides[2:])
    return replace(x, shape=shape, strides=strides)


@lowers(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: StridedTensor,
    weight: Maybe,
    bias: Maybe,
    _n: int | Index,
    _c: int | Index,
    _hxw: int | Index,
    group: int,
    eps: float,
) -> tuple[StridedTensor, ...]:
    """Results: output, mean and 1 / std by sample and group."""
    out, mean, rstd = (b.allocate(fake) for fake in b.fake)
    if group > 1 and b.target.kind == "cpu" and x.ndim > 2 and x.strides[1] == index(1):
        if all(n.is_const and n.const for n in x.shape):
            _group_norm_across(b, x, (out, mean, rstd), weight, bias, eps)
            return out, mean, rstd
    grouped, target = _grouped(x, group), _grouped(out, group)
    s = split(b, grouped, range(2, grouped.ndim), False, mean)
    if s.count.is_const and s.count.const == 0:
        raise Refused("a norm of nothing")
    value = cast(grouped.load(s.source), compute_dtype(x.dtype))
    acc = value.dtype
    body, centre, squares = moments(b, s.reduced, value, s.count)
    named, inverse = inverse_spread(b, squares, s.count, eps)
    body += [named, store(mean, s.result, centre), store(rstd, s.result, inverse)]
    result = mul(sub(value, centre), inverse)
    channel = (s.source[1] * grouped.shape[2] + s.source[2],)
    if weight is not None:
        result = mul(result, _element(weight, channel, acc))
    if bias is not None:
        result = add(result, _element(bias, channel, acc))
    body.extend(b.loop(s.reduced, (store(target, s.source, result),)))
    b.emit(s.kept, body)
    return out, mean, rstd


def _group_norm_across(
    b: Builder,
    x: StridedTensor,
    results: tuple[StridedTensor, StridedTensor, StridedTensor],
    weight: Maybe,
    bias: Maybe,
    eps: float,
) -> None:
    """Channels lie together, those of a group are few: lanes along channels find the moments of
    each, which those of groups are put together from; then ``x * scale + shift``, as in eager."""
    out, mean, rstd = results
    acc = compute_dtype(x.dtype)
    centres, spreads, scale, shift = (b.allocate_as(x.shape[:2], acc) for _ in range(4))
    s = split(b, x, range(2, x.ndim), False, centres)
    body, centre, squares = moments(b, s.reduced, cast(x.load(s.source), acc), s.count)
    stores = (store(centres, s.result, centre), store(spreads, s.result, squares))
    b.emit(s.kept, (*body, *stores))

    groups = int(mean.shape[1])
    each, within = (_grouped(t, groups) for t in (centres, spreads))
    g = split(b, each, [2], False, mean)
    body, middle, apart = moments(b, g.reduced, each.load(g.source), g.count)
    inside, squared = b.reduce(g.reduced, "sum", within.load(g.source))
    places = as_expr(s.count, acc)
    variance = div(add(squared, mul(apart, places)), mul(places, as_expr(g.count, acc)))
    named, inverse = b.let("rstd", apply("rsqrt", add(variance, const(eps, acc))))
    channel = (g.source[1] * each.shape[2] + g.source[2],)
    factor = inverse if weight is None else mul(inverse, _element(weight, channel, acc))
    given = const(0, acc) if bias is None else _element(bias, channel, acc)
    stores = (
        store(_grouped(scale, groups), g.source, factor),
        store(_grouped(shift, groups), g.source, sub(given, mul(middle, factor))),
    )
    body += [inside, named, store(mean, g.result, middle), store(rstd, g.result, inverse)]
    b.emit(g.kept, (*body, *b.loop(g.reduced, stores)))

    def linear_at(position: Position) -> Expr:
        factor, constant = (v.load(position[:2]) for v in (scale, shift))
        return add(mul(_element(x, position, acc), factor), constant)

    b.compute(out, linear_at)
