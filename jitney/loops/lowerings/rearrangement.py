"""Copies that move elements: concatenation, padding, flips, and writes into slices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Const, Expr
from jitney.loops.lowerings.builder import Builder, Position
from jitney.loops.lowerings.expressions import (
    Operand,
    all_in_range,
    all_of,
    apply,
    as_expr,
    cast,
    const,
    filler,
    in_range,
    index_expr,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.symbols import to_index

aten = torch.ops.aten
prims = torch.ops.prims
Size = int | Index

#: Up to so many tensors are concatenated in one nest of masked loads (which a consumer can
#: take in); more are copied one by one.
MASKED_PARTS = 4


@lowers(aten.cat.default)
def concatenate(b: Builder, tensors: Sequence[StridedTensor], dim: int = 0) -> StridedTensor:
    """Parts are converted to the result's dtype; by masked loads or by copies (`MASKED_PARTS`)."""
    out = b.allocate()
    dim %= max(out.ndim, 1)
    parts = [t for t in tensors if not _legacy_empty(t, out) and not _is_zero(t.shape[dim])]
    starts: list[Index] = []
    end = index(0)
    for part in parts:
        starts.append(end)
        end = end + part.shape[dim]
    if not parts or any(_is_zero(size) for size in out.shape):
        return out
    if len(parts) > MASKED_PARTS:
        for part, start in zip(parts, starts, strict=True):
            b.copy(out.narrow(dim, start, part.shape[dim]), part)
        return out
    return b.compute(out, lambda position: _joined(parts, starts, dim, position, out.dtype))


@lowers(aten.stack.default)
def stack(b: Builder, tensors: Sequence[StridedTensor], dim: int = 0) -> StridedTensor:
    """`concatenate` of the tensors, each with a new dimension ``dim`` of size one."""
    dim %= tensors[0].ndim + 1
    return concatenate(b, [t.unsqueeze(dim) for t in tensors], dim)


def _legacy_empty(tensor: StridedTensor, out: StridedTensor) -> bool:
    """A one-dimensional empty tensor may be concatenated with anything, and adds nothing."""
    return tensor.ndim == 1 and _is_zero(tensor.shape[0]) and out.ndim != 1


def _is_zero(size: Index) -> bool:
    return size.is_const and size.const == 0


def _joined(
    parts: Sequence[StridedTensor],
    starts: Sequence[Index],
    dim: int,
    position: Position,
    dtype: torch.dtype,
) -> Expr:
    value: Expr | None = None
    for part, start in reversed(list(zip(parts, starts, strict=True))):
        end = start + part.shape[dim]
        at = (*position[:dim], position[dim] - start, *position[dim + 1 :])
        mask = in_range(position[dim], start, end)
        loaded = cast(part.load(at, mask), dtype)
        if value is None:
            value = loaded
        else:
            before = apply("lt", index_expr(position[dim]), as_expr(end, torch.int64))
            value = where(before, loaded, value)
    assert value is not None
    return value


@lowers(aten.constant_pad_nd.default)
def constant_pad(
    b: Builder, x: StridedTensor, pad: Sequence[Size], value: Operand = 0
) -> StridedTensor:
    """``pad`` holds (before, after) from the last dimension backwards; negative crops."""
    before = [index(0)] * x.ndim
    for k in range(len(pad) // 2):
        before[x.ndim - 1 - k] = index(pad[2 * k])
    out = b.allocate()
    if not isinstance(value, bool | int | float):
        raise Refused("padding with a value known only at run time")
    filled = filler(value, out.dtype)
    assert isinstance(filled, Const)
    if any(_is_zero(size) for size in x.shape):
        return b.fill(out, filled.value)

    def value_at(position: Position) -> Expr:
        source = tuple(at - start for at, start in zip(position, before, strict=True))
        mask = all_in_range(source, x.shape)
        return x.load(source, mask, filled.value if mask is not None else 0)

    return b.compute(out, value_at)


@lowers(aten.flip.default, prims.rev.default)
def flip(b: Builder, x: StridedTensor, dims: Sequence[int]) -> StridedTensor:
    """Element ``i`` along each of ``dims`` is ``size - 1 - i`` of ``x``."""
    turned = {d % max(x.ndim, 1) for d in dims}

    def value_at(position: Position) -> Expr:
        source = [x.shape[d] - 1 - at if d in turned else at for d, at in enumerate(position)]
        return x.load(source)

    return b.compute(b.allocate(), value_at)


@lowers(aten.roll.default)
def roll(
    b: Builder, x: StridedTensor, shifts: Sequence[Size], dims: Sequence[int] = ()
) -> StridedTensor:
    """Element ``i`` is ``(i - shift) % size`` of ``x``; without ``dims`` they count as one row."""
    if any(_is_zero(size) for size in x.shape):
        return b.allocate()
    if not dims and x.ndim != 1:
        return _roll_flat(b, x, index(shifts[0]))
    moved = {d % x.ndim: index(0) for d in dims or (0,)}
    for d, shift in zip(dims or (0,), shifts, strict=True):
        moved[d % x.ndim] = moved[d % x.ndim] + index(shift)

    def value_at(position: Position) -> Expr:
        source = [
            (at + (index(0) - moved[d]) % x.shape[d]) % x.shape[d] if d in moved else at
            for d, at in enumerate(position)
        ]
        return x.load(source)

    return b.compute(b.allocate(), value_at)


def _roll_flat(b: Builder, x: StridedTensor, shift: Index) -> StridedTensor:
    def value_at(position: Position) -> Expr:
        flat = index(0)
        for at, size in zip(position, x.shape, strict=True):
            flat = flat * size + at
        flat = (flat + (index(0) - shift) % x.numel) % x.numel
        source: list[Index] = []
        for size in reversed(x.shape):
            source.insert(0, flat % size)
            flat = flat // size
        return x.load(source)

    return b.compute(b.allocate(), value_at)


@lowers(aten.repeat.default, aten.tile.default)
def repeat(b: Builder, x: StridedTensor, repeats: Sequence[Size]) -> StridedTensor:
    """Element ``i`` is ``i % size`` of ``x``; more ``repeats`` than dimensions lead."""
    out = b.allocate()

    def value_at(position: Position) -> Expr:
        own = position[out.ndim - x.ndim :]
        return x.load([at % size for at, size in zip(own, x.shape, strict=True)])

    if any(_is_zero(size) for size in out.shape):
        return out
    return b.compute(out, value_at)


@lowers(aten.tril.default)
def lower_triangle(b: Builder, x: StridedTensor, diagonal: Size = 0) -> StridedTensor:
    """Zero, whatever is there, where ``column - row > diagonal`` in the last two dimensions."""
    return _triangle(b, x, diagonal, "le")


@lowers(aten.triu.default)
def upper_triangle(b: Builder, x: StridedTensor, diagonal: Size = 0) -> StridedTensor:
    """Zero, whatever is there, where ``column - row < diagonal`` in the last two dimensions."""
    return _triangle(b, x, diagonal, "ge")


def _triangle(b: Builder, x: StridedTensor, diagonal: Size, keep: str) -> StridedTensor:
    def value_at(position: Position) -> Expr:
        row, column = position[-2], position[-1]
        inside = apply(keep, index_expr(column - row), as_expr(index(diagonal), torch.int64))
        return where(inside, x.load(position), const(0, x.dtype))

    return b.compute(b.allocate(), value_at)


# ---------------------------------------------------------------- writes into slices


@lowers(aten.slice_scatter.default)
def slice_scatter(
    b: Builder,
    x: StridedTensor,
    src: StridedTensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> StridedTensor:
    """``x`` with ``src``, which tells how many, at ``start``, ``start + step``, … along ``dim``.
    Written in place where that is allowed. Refused for a start that may lie outside."""
    _refuse_shared_places(b)
    dim %= x.ndim
    begin = _clamped(start, x.shape[dim])
    count = src.shape[dim]
    src = src.expand((*x.shape[:dim], count, *x.shape[dim + 1 :]))
    if b.may_overwrite and step == 1:
        out = b.own(x)
        b.copy(out.narrow(dim, begin, count), src)
        return out

    def value_at(position: Position) -> Expr:
        away = position[dim] - begin
        at = (*position[:dim], away // index(step), *position[dim + 1 :])
        inside = in_range(position[dim], begin, begin + (count - 1) * step + 1)
        if step != 1:
            on_step = apply("eq", index_expr(away % index(step)), const(0, torch.int64))
            inside = all_of(inside, on_step)
        written = cast(src.load(at, inside), x.dtype)
        return written if inside is None else where(inside, written, x.load(position))

    if _is_zero(count):
        return b.copy(b.allocate(), x)
    return b.compute(b.allocate(), value_at)


def _refuse_shared_places(b: Builder) -> None:
    """Refuses a result that has several elements in one place of memory, as windows do: a part
    that is written to changes others. (Of symbolic sizes those of the trace decide.)"""
    lies = [(to_index(n).hint(), to_index(s).hint()) for n, s in zip(b.fake.shape, b.fake.stride())]
    reach = 0
    for size, step in sorted(lies, key=lambda pair: pair[1]):
        if size > 1 and step <= reach:
            raise Refused("a result whose elements share places")
        reach += step * max(size - 1, 0)


def _clamped(start: Size | None, size: Index) -> Index:
    """A slice's start as a position in ``0 … size``, Python's rules."""
    begin = index(0) if start is None else index(start)
    low, high = begin.bounds()
    if high is not None and high < 0:
        begin = begin + size
        low = begin.bounds()[0]
    if low is None or low < 0:
        if begin.is_const and size.is_const:
            return index(max(0, begin.const))
        raise Refused("a slice whose start may lie outside")
    if begin.is_const and size.is_const:
        return index(min(begin.const, size.const))
    return begin


@lowers(aten.select_scatter.default)
def select_scatter(
    b: Builder, x: StridedTensor, src: StridedTensor, dim: int, at: Size
) -> StridedTensor:
    """``x`` with ``src`` at one position of ``dim``; refused if its sign is unknown."""
    _refuse_shared_places(b)
    dim %= x.ndim
    where_ = index(at)
    low, high = where_.bounds()
    if high is not None and high < 0:
        where_ = where_ + x.shape[dim]
    elif low is None or low < 0:
        raise Refused("an index that may count from the end")
    if b.may_overwrite:
        out = b.own(x)
        b.copy(out.select(dim, where_), src)
        return out

    def value_at(position: Position) -> Expr:
        inside = apply("eq", index_expr(position[dim]), as_expr(where_, torch.int64))
        rest = (*position[:dim], *position[dim + 1 :])
        return where(inside, cast(src.load(rest, inside), x.dtype), x.load(position))

    return b.compute(b.allocate(), value_at)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    b: Builder, x: StridedTensor, src: StridedTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> StridedTensor:
    """``x`` with ``src``, whose last dimension runs along it, on a diagonal."""
    _refuse_shared_places(b)
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    rest = [d for d in range(x.ndim) if d not in (dim1, dim2)]

    def value_at(position: Position) -> Expr:
        row, column = position[dim1], position[dim2]
        inside = apply("eq", index_expr(column - row), const(offset, torch.int64))
        along = row if offset >= 0 else column
        written = src.load((*(position[d] for d in rest), along), inside)
        return where(inside, cast(written, x.dtype), x.load(position))

    return b.compute(b.allocate(), value_at)
