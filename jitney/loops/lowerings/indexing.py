"""Gathers and indexed writes: element positions that are themselves loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jitney.loops.index import Axis, Index, index, is_empty
from jitney.loops.ir import Expr, Let, Ref, Stmt, Store
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.check_range import check_range
from jitney.loops.lowerings.collectors import collected, collector, orderly
from jitney.loops.lowerings.expressions import (
    apply,
    cast,
    const,
    index_expr,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Advanced:
    """NumPy-style indexing of ``x`` resolved: which dimensions are indexed and by what.

    ``at``: where the broadcast index dimensions stand in the result; ``shape``: those sizes.
    """

    indices: tuple[tuple[int, StridedTensor], ...]
    plain: tuple[int, ...]
    at: int
    shape: tuple[Index, ...]


def _advanced(x: StridedTensor, indices: Sequence[StridedTensor | None]) -> Advanced:
    given = tuple((d, i) for d, i in enumerate(indices) if i is not None)
    if any(i.dtype not in (torch.int32, torch.int64) for _, i in given):
        raise Refused("a mask as index selects a number of elements known only at run time")
    dims = [d for d, _ in given]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims))) if dims else True
    ndim = max((i.ndim for _, i in given), default=0)
    shape = [index(1)] * ndim
    for _, i in given:
        for k, size in enumerate(i.shape):
            if size != index(1):
                shape[ndim - i.ndim + k] = size
    plain = tuple(d for d in range(x.ndim) if d not in dims)
    at = dims[0] if dims and adjacent else 0
    expanded = tuple((d, i.expand(shape)) for d, i in given)
    return Advanced(expanded, plain, at, tuple(shape))


def _source(
    b: Builder, x: StridedTensor, how: Advanced, chosen: Position, rest: Position
) -> tuple[tuple[Let, ...], Position]:
    """Lets for the loaded positions, and the position in ``x`` they and ``rest`` make."""
    lets: list[Let] = []
    position: list[Index] = [index(0)] * x.ndim
    for dim, i in how.indices:
        found, value = b.let_index(i.load(chosen), x.shape[dim], f"{b.node.name}_at{dim}")
        lets.extend(found)
        position[dim] = value
    for dim, where_ in zip(how.plain, rest, strict=True):
        position[dim] = where_
    return tuple(lets), tuple(position)


def _check(b: Builder, x: StridedTensor, how: Advanced, touched: Sequence[Index]) -> None:
    """Checks advanced indices, but where the op promises that they are in range."""
    if b.node.target in (aten._unsafe_index.Tensor, aten._unsafe_index_put.default):
        return
    wraps = b.node.target not in (aten.embedding.default, aten.index_select.default)
    for dim, positions in how.indices:
        check_range(b, positions, x.shape[dim], wraps, touched)


def _parted(how: Advanced, position: Position) -> tuple[Position, Position]:
    """A position in the result as index dimensions and the rest."""
    end = how.at + len(how.shape)
    return position[how.at : end], position[: how.at] + position[end:]


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def gather_elements(
    b: Builder, x: StridedTensor, indices: Sequence[StridedTensor | None]
) -> StridedTensor:
    """``x[indices]``, NumPy's rules. Refused for masks, and where eager must raise."""
    how = _advanced(x, indices)
    out = b.allocate()
    _check(b, x, how, out.shape)
    axes, position = b.axes(out.shape, strides=out.strides)
    if _nothing_to_read(x, out):
        return out
    lets, source = _source(b, x, how, *_parted(how, position))
    b.emit(axes, (*lets, Store(out.buffer, out.at(position), x.load(source))))
    return out


def _nothing_to_read(x: StridedTensor, out: StridedTensor) -> bool:
    """Whether ``x`` has no elements; refused where eager must then raise."""
    if is_empty(out.shape):
        return True
    if is_empty(x.shape):
        raise Refused("an index into nothing must raise eager's error")
    return False


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def put_elements(
    b: Builder,
    x: StridedTensor,
    indices: Sequence[StridedTensor | None],
    values: StridedTensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> StridedTensor:
    """``x`` after ``x[indices] = values``, or ``+=``; of masks just one, with a scalar."""
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and masks[0].dtype is torch.bool and values.ndim == 0 and not accumulate:
        return _put_masked(b, x, list(indices), values)
    how = _advanced(x, indices)
    sizes = [x.shape[d] for d in how.plain]
    shape = [*sizes[: how.at], *how.shape, *sizes[how.at :]]
    _check(b, x, how, shape)
    mode = "add" if accumulate else "set"
    out = collector(b, x, mode) if accumulate else b.own(x)
    axes, position = b.axes(shape)
    chosen, rest = _parted(how, position)
    if nothing_to_write(x, shape):
        return collected(b, out)
    lets, target = _source(b, out, how, chosen, rest)
    value = values.expand(shape).load(position) if values.ndim else values.load(())
    scatter(b, axes, chosen, lets, out, target, value, mode)
    return collected(b, out)


def nothing_to_write(x: StridedTensor, shape: Sequence[Index]) -> bool:
    """Whether ``shape`` has no element; refused if just ``x`` has none, so that eager raises."""
    if is_empty(shape):
        return True
    if is_empty(x.shape):
        raise Refused("an index into nothing must raise eager's error")
    return False


def _put_masked(
    b: Builder, x: StridedTensor, indices: list[StridedTensor | None], value: StridedTensor
) -> StridedTensor:
    first = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[first]
    assert mask is not None

    def value_at(position: Position) -> Expr:
        masked = mask.load(position[first : first + mask.ndim])
        return where(masked, cast(value.load(()), x.dtype), x.load(position))

    return b.compute(b.allocate(), value_at)


def scatter(
    b: Builder,
    axes: Sequence[Axis],
    serial: Position,
    lets: Sequence[Let],
    out: StridedTensor,
    position: Position,
    value: Expr,
    mode: str,
) -> None:
    """Stores ``value`` at a computed position, for every point of ``axes``.

    Axes in ``serial`` choose the position. On CPU they run in order inside the parallel ones, so
    that what collides is added (or overwritten) as eager would; elsewhere all run at once.
    """
    value = cast(value, out.dtype)
    if b.target.kind == "cuda":
        if torch.are_deterministic_algorithms_enabled():
            raise Refused("deterministic algorithms are asked for")
        value = orderly(value, mode)
    stored: list[Stmt] = [*lets, Store(out.buffer, out.at(position), value, mode=mode)]
    b.emit_in_order(axes, serial if b.target.kind == "cpu" else (), stored)


# ---------------------------------------------------------------- along one dimension


@lowers(aten.gather.default)
def gather(
    b: Builder, x: StridedTensor, dim: int, positions: StridedTensor, *, sparse_grad: bool = False
) -> StridedTensor:
    """The element of ``x`` at ``positions`` along ``dim``, none of which may be negative."""
    out = b.allocate()
    if _nothing_to_read(x, out):
        return out
    if x.ndim == 0:
        return _the_one_element(b, out, x, positions)
    axes, position = b.axes(out.shape, strides=out.strides)
    source, lets = moved(b, x, dim, positions, position)
    b.emit(axes, (*lets, Store(out.buffer, out.at(position), x.load(source))))
    return out


def _the_one_element(
    b: Builder, out: StridedTensor, x: StridedTensor, positions: StridedTensor
) -> StridedTensor:
    """A scalar, at every one of ``positions``: all have to be 0."""
    check_range(b, positions, index(1), wraps=False, touched=positions.shape)
    return b.copy(out, x)


def moved(
    b: Builder, x: StridedTensor, dim: int, positions: StridedTensor, position: Position
) -> tuple[Position, tuple[Let, ...]]:
    """``position`` with its entry along ``dim`` loaded from ``positions``."""
    dim %= max(x.ndim, 1)
    check_range(b, positions, x.shape[dim], wraps=False, touched=positions.shape)
    at = positions.load(position if positions.ndim else ())
    lets, value = b.let_index(at, x.shape[dim], f"{b.node.name}_at")
    return (*position[:dim], value, *position[dim + 1 :]), lets


@lowers(aten.index_select.default)
def index_select(b: Builder, x: StridedTensor, dim: int, positions: StridedTensor) -> StridedTensor:
    """Rows of ``x``, by `gather_elements`; positions may not be negative."""
    if x.ndim == 0:
        return _the_one_element(b, b.allocate(), x, positions)
    indices: list[StridedTensor | None] = [None] * (dim % x.ndim)
    positions = positions if positions.ndim else positions.unsqueeze(0)
    return gather_elements(b, x, [*indices, positions])


# ---------------------------------------------------------------- embedding


@lowers(aten.embedding.default)
def embedding(
    b: Builder,
    weight: StridedTensor,
    positions: StridedTensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> StridedTensor:
    """Rows of ``weight``; the other arguments are for its gradient."""
    return gather_elements(b, weight, [positions])


@lowers(aten.embedding_dense_backward.default)
def embedding_backward(
    b: Builder,
    grad: StridedTensor,
    positions: StridedTensor,
    num_weights: int | Index,
    padding_idx: int | Index,
    scale_grad_by_freq: bool,
) -> StridedTensor:
    """Rows of ``grad`` added at their positions; the padding row stays zero."""
    if scale_grad_by_freq:
        raise Refused("gradients scaled by frequency need a count first")
    out = b.fill(b.allocate(), 0)
    if nothing_to_write(out, positions.shape):
        return out
    axes, position = b.axes(grad.shape)
    lets, row = b.let_index(positions.load(position[:-1]), out.shape[0], f"{b.node.name}_row")
    value = cast(grad.load(position), out.dtype)
    if isinstance(padding_idx, Index) or padding_idx >= 0:
        padded = apply("eq", index_expr(row), index_expr(index(padding_idx)))
        value = where(padded, const(0, value.dtype), value)
    scatter(b, axes, position[:-1], lets, out, (row, position[-1]), value, "add")
    return out


# ---------------------------------------------------------------- search


@lowers(aten.bucketize.Tensor)
def bucketize(
    b: Builder,
    x: StridedTensor,
    boundaries: StridedTensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> StridedTensor:
    """The first boundary at or above each element (above, if ``right``), by halves as eager's
    search: both find the same where NaN is among the boundaries, or where they are not sorted."""
    size = boundaries.shape[0]
    if not size.is_const or size.const <= 0:
        raise Refused("a number of boundaries known only at run time")
    out = b.allocate()
    axes, position = b.axes(out.shape, strides=out.strides)
    dtype = torch.promote_types(x.dtype, boundaries.dtype)
    value = cast(x.load(position), dtype)
    low: Expr = const(0, torch.int64)
    high: Expr = index_expr(size)
    lets: list[Let] = []

    def named(hint: str, found: Expr) -> Expr:
        lets.append(Let(b.fresh(f"{b.node.name}_{hint}"), found))
        return Ref(lets[-1].name, found.dtype)

    for _ in range(size.const.bit_length()):
        middle = apply("floordiv", apply("add", low, high), const(2, torch.int64))
        held, at = b.let_index(middle, size, f"{b.node.name}_middle")
        lets.extend(held)
        edge = cast(boundaries.load((at,)), dtype)
        below = named("below", apply("not", apply("gt" if right else "ge", edge, value)))
        more = apply("lt", low, high)
        after = apply("add", index_expr(at), const(1, torch.int64))
        low, high = (
            named("low", where(apply("and", more, below), after, low)),
            named("high", where(apply("and", more, apply("not", below)), index_expr(at), high)),
        )
    b.emit(axes, (*lets, Store(out.buffer, out.at(position), cast(low, out.dtype))))
    return out
