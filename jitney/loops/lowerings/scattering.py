"""Scatters along one dimension: what collides is overwritten, or combined, in eager's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.loops.index import Index, index
from jitney.loops.ir import Expr
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.check_range import check_filler, check_range
from jitney.loops.lowerings.collectors import collected, collector, crowds, without_sign
from jitney.loops.lowerings.expressions import (
    Operand,
    as_expr,
    cast,
    const,
    div,
    filler,
    is_int,
    largest,
    lowest,
    maximum,
    mul,
)
from jitney.loops.lowerings.indexing import moved, nothing_to_write, scatter
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten


@lowers(aten.scatter.src, aten.scatter.value)
def scatter_set(
    b: Builder, x: StridedTensor, dim: int, positions: StridedTensor, src: StridedTensor | Operand
) -> StridedTensor:
    """``x`` with ``src`` at ``positions`` along ``dim``; where several go a CPU keeps the last."""
    return _scatter_along(b, b.own(x), dim, positions, src, "set")


@lowers(aten.scatter_add.default)
def scatter_add(
    b: Builder, x: StridedTensor, dim: int, positions: StridedTensor, src: StridedTensor
) -> StridedTensor:
    """``x`` plus ``src`` at ``positions`` along ``dim``. Refused for bools."""
    if x.dtype is torch.bool:
        raise Refused("a sum of bools")
    work = collector(b, x, "add", exact=crowds(b, x, positions))
    return collected(b, _scatter_along(b, work, dim, positions, src, "add"))


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    src: StridedTensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> StridedTensor:
    """Sum, mean, prod, amax or amin; what is refused: `_reduce_into`."""

    def put(out: StridedTensor, value: StridedTensor | Operand, mode: str) -> None:
        _scatter_along(b, out, dim, positions, value, mode)

    return _reduce_into(b, x, src, put, reduce, include_self)


#: How a scatter reduces -> how its stores combine.
_COMBINED = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _identity(reduce: str, dtype: torch.dtype) -> float:
    """What changes nothing it is combined with."""
    if reduce == "amin":
        return largest(dtype)
    return lowest(dtype) if reduce == "amax" else float(reduce == "prod")


def _reduce_into(
    b: Builder,
    x: StridedTensor,
    src: StridedTensor,
    put: Callable[[StridedTensor, StridedTensor | Operand, str], None],
    reduce: str,
    include_self: bool,
) -> StridedTensor:
    """``put(out, value, mode)`` stores values where they belong; here in up to four rounds.

    Without ``include_self`` what is hit starts from the identity; a mean counts the hits too.
    """
    mode = _COMBINED[reduce]
    plain = (reduce == "sum" and include_self) or x.dtype in (torch.float32, torch.float64)
    if not plain and (b.target.kind == "cpu" or (reduce == "mean" and is_int(x.dtype))):
        raise Refused(f"a scatter that reduces {x.dtype} by {reduce}")
    if x.dtype is torch.bool:
        raise Refused("a sum of bools")
    out = collector(b, x, mode, exact=reduce == "mean")
    if not include_self:
        put(out, _identity(reduce, out.dtype), "set")
    put(out, src, mode)
    if reduce == "mean":
        hits = b.fill(b.allocate_as(out.shape, out.dtype), 1 if include_self else 0)
        put(hits, 1, "add")
        one = const(1, out.dtype)
        b.compute(out, lambda p: div(out.load(p), maximum(hits.load(p), one)))
    if mode == "min" and b.target.kind == "cuda" and out.dtype.is_floating_point:
        b.compute(out, lambda p: without_sign(out.load(p)))
    return collected(b, out)


def _scatter_along(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    src: StridedTensor | Operand,
    mode: str,
) -> StridedTensor:
    """Stores ``src`` into ``x``, ``positions`` along ``dim``."""
    result = x
    out, positions = _one_dimensional(x), _one_dimensional(positions)
    src = _one_dimensional(src) if isinstance(src, StridedTensor) else src
    if nothing_to_write(out, positions.shape):
        return result
    axes, position = b.axes(positions.shape)
    target, lets = moved(b, out, dim, positions, position)
    value = src.load(position) if isinstance(src, StridedTensor) else filler(src, out.dtype)
    serial = (position[dim % out.ndim],)
    scatter(b, axes, serial, lets, out, target, value, mode)
    return result


def _one_dimensional(x: StridedTensor) -> StridedTensor:
    """A scalar as a tensor of one element; others as they are."""
    return x if x.ndim else x.unsqueeze(0)


@lowers(aten.index_add.default)
def index_add(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    source: StridedTensor,
    *,
    alpha: Operand = 1,
) -> StridedTensor:
    """``x`` plus ``alpha * source``, rows at ``positions`` of ``dim``. Refused for bools."""
    if x.dtype is torch.bool:
        raise Refused("a sum of bools")
    work = collector(b, x, "add", exact=crowds(b, x, source))
    return collected(b, _put_rows(b, work, dim, positions, source, "add", alpha))


@lowers(aten.index_reduce.default)
def index_reduce(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    source: StridedTensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> StridedTensor:
    """As `scatter_reduce`, of rows."""

    def put(out: StridedTensor, value: StridedTensor | Operand, mode: str) -> None:
        _put_rows(b, out, dim, positions, value, mode)

    return _reduce_into(b, x, source, put, reduce, include_self)


@lowers(aten.index_copy.default)
def index_copy(
    b: Builder, x: StridedTensor, dim: int, positions: StridedTensor, source: StridedTensor
) -> StridedTensor:
    """``x`` with rows of ``source`` at ``positions`` of ``dim``; of several as `scatter_set`."""
    return _put_rows(b, b.own(x), dim, positions, source, "set")


_FILLS = (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    value: StridedTensor | Operand,
) -> StridedTensor:
    """``x`` with ``value`` in the rows at ``positions`` of ``dim``, negative ones from the end."""
    if isinstance(value, StridedTensor):
        check_filler(b, value, x.dtype)
    return _put_rows(b, b.own(x), dim, positions, value, "set")


def _put_rows(
    b: Builder,
    x: StridedTensor,
    dim: int,
    positions: StridedTensor,
    source: StridedTensor | Operand,
    mode: str,
    factor: Operand = 1,
) -> StridedTensor:
    result = x
    x, positions = _one_dimensional(x), _one_dimensional(positions)
    dim %= x.ndim
    shape = (*x.shape[:dim], positions.shape[0], *x.shape[dim + 1 :])
    if nothing_to_write(x, shape):
        return result
    check_range(b, positions, x.shape[dim], b.node.target in _FILLS, shape)
    axes, position = b.axes(shape)
    lets, at = b.let_index(positions.load((position[dim],)), x.shape[dim], f"{b.node.name}_at")
    target = (*position[:dim], at, *position[dim + 1 :])
    if isinstance(source, StridedTensor):
        value: Expr = source.load(position if source.ndim == x.ndim else ())
    else:
        value = filler(source, x.dtype)
    value = mul(cast(value, x.dtype), as_expr(factor, x.dtype))
    scatter(b, axes, (position[dim],), lets, x, target, value, mode)
    return result


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder,
    x: StridedTensor,
    src: StridedTensor,
    size: Sequence[int | Index],
    stride: Sequence[int | Index],
    storage_offset: int | Index | None = None,
) -> StridedTensor:
    """``x`` with ``src`` in places counted from where its storage begins.

    A temporary's storage is the workspace, so that no library call can be told those places.
    """
    fake: torch.Tensor = b.node.args[0].meta["val"]  # type: ignore[union-attr]
    sizes, strides = tuple(map(index, size)), tuple(map(index, stride))
    plain = x.offset == index(0) and _is_dense_at_start(fake)
    if not plain or fake.stride() != b.fake.stride() or _overlaps(sizes, strides):
        is_input = any(buffer.name == x.buffer and buffer.kind == "input" for buffer in b.buffers)
        # torch's own op begins where what it is given does, and refuses others with a gradient
        begins_so = torch_api.surely_equal(fake.storage_offset(), b.fake.storage_offset())
        if is_input and begins_so and torch_api.lies_in_rows(fake):
            raise Refused("a scatter into storage that is not a plain tensor's")
        raise Unsupported("as-strided", "a scatter by storage offset into a view")
    out = b.allocate()
    if math.prod(sizes, start=index(1)) != math.prod(x.shape, start=index(1)):
        b.copy(out, x)
    place = StridedTensor(out.buffer, out.dtype, sizes, strides, index(storage_offset or 0))
    b.copy(place, src)
    return out


def _is_dense_at_start(fake: torch.Tensor) -> bool:
    """Whether a tensor's elements lie one by one, in any order, from where its storage begins."""
    if fake.ndim == 1 and fake.stride() == (1,):
        return fake.storage_offset() == 0
    if not all(isinstance(size, int) for size in fake.shape) or fake.storage_offset() != 0:
        return False
    step = 1
    for stride, size in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _overlaps(sizes: Sequence[Index], strides: Sequence[Index]) -> bool:
    """Whether two positions may be one place."""
    if not all(step.is_const for step in strides):
        return True
    reach = index(0)
    for step, size in sorted(zip(strides, sizes, strict=True), key=lambda pair: int(pair[0])):
        if size.is_const and int(size) <= 1:
            continue
        if not reach.is_const or int(step) <= int(reach):
            return True
        reach += step * (size - 1)
    return False
