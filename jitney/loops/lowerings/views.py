"""Views: index maps over the base's buffer, taken from the strides torch itself gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.loops.index import Index, index
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.registry import Refused, optional_op
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.symbols import to_index
from jitney.torch_api import OpOverload

aten = torch.ops.aten

#: Views whose schema does not say so: functionalisation promises that nothing writes to them.
_UNANNOTATED = frozenset(
    op
    for op in (
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
        getattr(aten, "unsafe_chunk", None) and aten.unsafe_chunk.default,
        aten.lift.default,
        optional_op("broadcast_in_dim", "prims") and torch.ops.prims.broadcast_in_dim.default,
    )
    if op is not None
)


def is_view(op: Any) -> bool:
    """Whether every result of ``op`` is a view of its first argument."""
    if not isinstance(op, OpOverload):
        return False
    if op in _UNANNOTATED:
        return True
    schema = torch_api.schema_of(op)
    if op is aten.view.dtype or (schema.is_mutable and torch.Tag.inplace_view not in op.tags):
        return False
    return bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)


def may_alias(op: Any) -> bool:
    """Whether a result of ``op`` may share storage with an argument, by its schema."""
    if not isinstance(op, OpOverload):
        return False
    return any(r.alias_info is not None for r in torch_api.schema_of(op).returns)


def lower_view(
    b: Builder, base: StridedTensor, base_fake: torch.Tensor, rest: Sequence[Any], named: Any
) -> Any:
    """The node's result(s) as views of ``base``.

    torch itself takes the view, of a tensor without memory that has the strides of ``base``. Where
    those do not allow it (a pass has given the base other strides than eager), a row-major copy
    of the base does. With symbolic sizes it is the view that was traced, as far behind its base as
    it was then behind what it was taken of, of a copy where the base lies otherwise than that.
    """
    fakes = b.fake if isinstance(b.fake, tuple | list) else (b.fake,)
    for fake in fakes:
        # what a base with a pending conjugation is made of is conjugated already
        pending = any(t.is_conj() or t.is_neg() for t in (fake, base_fake))
        if fake.dtype != base_fake.dtype or pending:
            raise Refused("a view that reinterprets elements")
    if b.node.target is aten.as_strided.default or _symbolic((base.shape, base.strides, rest)):
        views = _traced(b, base, b.node.meta.get("of", base_fake), fakes)
    else:
        try:
            views = _taken(b, base, rest, named)
        except RuntimeError:
            views = _taken(b, b.copy(b.allocate_as(base.shape, base.dtype), base), rest, named)
    return views if isinstance(b.fake, tuple | list) else views[0]


def _symbolic(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_symbolic(item) for item in value)
    return isinstance(value, Index) and not value.is_const


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.const if isinstance(value, Index) else value


def _taken(
    b: Builder, base: StridedTensor, rest: Sequence[Any], named: Any
) -> tuple[StridedTensor, ...]:
    shape, strides = _plain(base.shape), _plain(base.strides)
    stand_in = torch.empty_strided(shape, strides, dtype=base.dtype, device="meta")
    target: Any = b.node.target
    options = {key: _plain(value) for key, value in named.items()}
    found = target(stand_in, *(_plain(value) for value in rest), **options)
    every = found if isinstance(found, tuple | list) else (found,)
    return tuple(
        StridedTensor(
            base.buffer,
            base.dtype,
            tuple(map(index, view.shape)),
            tuple(map(index, view.stride())),
            base.offset + view.storage_offset(),
        )
        for view in every
    )


def _traced(
    b: Builder, base: StridedTensor, traced: torch.Tensor, fakes: Sequence[torch.Tensor]
) -> tuple[StridedTensor, ...]:
    """``fakes`` were taken of ``traced``, which holds the values of ``base``."""
    placed = b.node.target is aten.as_strided.default  # says itself where it begins
    strides = tuple(map(to_index, traced.stride()))
    pairs = zip(base.shape, base.strides, strides, strict=True)
    if any(size != index(1) and own != other for size, own, other in pairs):
        if placed:
            raise Unsupported("as-strided", "a view of memory that lies as in no eager run")
        base = b.copy(b.allocate(traced), base)
    start = to_index(traced.storage_offset())
    views = []
    for fake in fakes:
        moved = to_index(fake.storage_offset()) - start
        if placed and (moved.is_const and moved.const < 0 or moved.atoms() & start.atoms()):
            raise Unsupported("as-strided", "a view that may begin before its tensor")
        shape, lies = (tuple(map(to_index, each)) for each in (fake.shape, fake.stride()))
        views.append(StridedTensor(base.buffer, base.dtype, shape, lies, base.offset + moved))
    return tuple(views)
