"""Tensors made from nothing: constants, counters, identity matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.loops.index import Index, index
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    HALF,
    Operand,
    add,
    apply,
    as_expr,
    cast,
    const,
    filler,
    index_expr,
    is_int,
    largest,
    mul,
    sub,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.torch_api.written_ops import writing_form_of

aten = torch.ops.aten
prims = torch.ops.prims
Size = int | Index


@lowers(aten.full.default, aten.new_full.default, aten.full_like.default)
def full(b: Builder, _shape: Any, *rest: Any, **_options: Any) -> StridedTensor:
    """The last positional argument everywhere; refused if the dtype does not hold it."""
    value: Operand = rest[-1]
    out = b.allocate()
    return b.compute(out, lambda _: filler(value, out.dtype))


@lowers(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Operand, **_options: Any) -> StridedTensor:
    """A tensor without dimensions; refused as `full`."""
    return full(b, (), value)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(b: Builder, *_shape: Any, **_options: Any) -> StridedTensor:
    """Whatever shape is asked for, the result's own is filled."""
    return b.fill(b.allocate(), 0)


@lowers(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)
@lowers(aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default)
@lowers(prims.empty_strided.default)
def unset(b: Builder, *_shape: Any, **_options: Any) -> StridedTensor:
    """Memory eager leaves unset is zero here: a kernel's result never depends on the past. Where
    eager fills it, with NaN or the largest integer, so do we. What an author's op alone is given to
    write to stays unset."""
    out = b.allocate()
    if not torch_api.fills_memory():
        return out if _is_given_away(b.node) else b.fill(out, 0)
    return b.fill(out, math.nan if out.dtype.is_floating_point else largest(out.dtype))


def _is_given_away(node: fx.Node) -> bool:
    (user, *others) = node.users or (node,)
    bases: Any = user.args[0] if writing_form_of(user.target) is not None else ()
    return not others and node in bases


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *_shape: Any, **_options: Any) -> StridedTensor:
    """Whatever shape is asked for, the result's own is filled."""
    return b.fill(b.allocate(), 1)


@lowers(aten.arange.start_step)
def counted_by(
    b: Builder, start: Operand, end: Operand, step: Operand = 1, **_options: Any
) -> StridedTensor:
    """``start + i * step``, floats in double precision, as eager computes them on a CPU."""
    return _counted(b, start, step)


@lowers(aten.arange.start)
def counted_from(b: Builder, start: Operand, end: Operand, **_options: Any) -> StridedTensor:
    """``start + i``; floats as in `counted_by`."""
    return _counted(b, start, 1)


@lowers(aten.arange.default)
def counted(b: Builder, end: Operand, **_options: Any) -> StridedTensor:
    """0, 1, …; floats as in `counted_by`."""
    return _counted(b, 0, 1)


@lowers(prims.iota.default)
def iota(
    b: Builder, length: Size, *, start: Operand, step: Operand, **_options: Any
) -> StridedTensor:
    """``start + i * step``; the length is the result's own."""
    return _counted(b, start, step)


def _counted(b: Builder, start: Operand, step: Operand) -> StridedTensor:
    out = b.allocate()
    if out.dtype in HALF and b.target.kind == "cpu" and not _exact(start, step, out):
        raise Refused("eager rounds the first number of each vector, then what it adds to it")

    def value_at(position: Position) -> Expr:
        if isinstance(start, int | Index) and isinstance(step, int | Index) and is_int(out.dtype):
            return cast(index_expr(position[0] * index(step) + index(start)), out.dtype)
        acc = torch.float64 if out.dtype.is_floating_point else torch.int64
        at = as_expr(position[0], acc)
        return add(mul(at, as_expr(step, acc)), as_expr(start, acc))

    return b.compute(out, value_at)


def _exact(start: Operand, step: Operand, out: StridedTensor) -> bool:
    """Whether the numbers counted are whole ones that the dtype of ``out`` holds."""
    most = out.shape[0].bounds()[1]
    if most is None or not (isinstance(start, int | float) and isinstance(step, int | float)):
        return False
    ends = (start, step, start + step * most)
    return all(x == int(x) and abs(x) * torch.finfo(out.dtype).eps <= 2 for x in ends)


@lowers(aten.linspace.default)
def linspace(
    b: Builder, start: Operand, end: Operand, steps: Size, **_options: Any
) -> StridedTensor:
    """Counted from the start in the first half and from the end in the second, as eager does."""
    out = b.allocate()
    if not (isinstance(start, int | float) and isinstance(end, int | float)):
        raise Refused("ends known only at run time")
    if not isinstance(steps, int) or out.dtype not in (torch.float32, torch.float64):
        raise Refused("a symbolic number of steps, or steps that are rounded")
    if steps < 2:
        return b.fill(out, start)
    first, last = const(start, out.dtype), const(end, out.dtype)
    step = const(
        float(torch.tensor(end, dtype=out.dtype) - torch.tensor(start, dtype=out.dtype))
        / (steps - 1),
        out.dtype,
    )

    def value_at(position: Position) -> Expr:
        up = add(first, mul(step, as_expr(position[0], out.dtype)))
        down = sub(last, mul(step, as_expr(index(steps - 1) - position[0], out.dtype)))
        half = apply("lt", index_expr(position[0]), const(steps // 2, torch.int64))
        return where(half, up, down)

    return b.compute(out, value_at)


@lowers(aten.eye.default, aten.eye.m)
def eye(b: Builder, *_sizes: Size, **_options: Any) -> StridedTensor:
    """1 where row and column are the same, else 0."""
    out = b.allocate()

    def value_at(position: Position) -> Expr:
        row, column = position
        return cast(apply("eq", index_expr(row), index_expr(column)), out.dtype)

    return b.compute(out, value_at)
