"""Calls of authors' ops that write to their arguments: extern calls that write in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from jitney import torch_api
from jitney.loops.index import index
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.strided import StridedTensor
from jitney.loops.symbols import to_index
from jitney.torch_api import OpOverload
from jitney.torch_api.written_ops import filled, places_of


def lower_written_call(
    b: Builder,
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    overwritten: Sequence[bool],
) -> tuple[Any, ...]:
    """The functional form of ``op`` as a call of ``op`` itself: its results, and its bases, copied
    before where an old value is still needed (not ``overwritten``), or lies otherwise than in the
    trace, by which the places of the arguments are counted."""
    bases, numbers, *given = args
    fakes = list(b.fake)
    results = fakes[: len(fakes) - len(bases)]
    written = [
        _own(b, base, fake, free)
        for base, fake, free in zip(bases, fakes[len(results) :], overwritten, strict=True)
    ]

    def part(place: Any) -> StridedTensor:
        base = written[place.base]
        if place.whole:
            return base
        shape, strides = tuple(map(index, place.shape)), tuple(map(index, place.strides))
        return replace(base, shape=shape, strides=strides, offset=base.offset + place.offset)

    places = list(places_of(numbers))
    passed, named = filled(op, given, kwargs, places, part)
    fresh = iter(results)
    returns = torch_api.schema_of(op).returns
    made = [next(fresh) if r.alias_info is None else None for r in returns]
    wanted = made if results else []
    found = b.extern(op, passed, named, wanted, "it writes into its arguments", written)
    return (*(x for x in found if x is not None), *written)


def _own(b: Builder, base: StridedTensor, fake: torch.Tensor, free: bool) -> StridedTensor:
    strides = tuple(to_index(stride) for stride in fake.stride())
    if free and base.strides == strides:
        return base
    return b.copy(b.allocate(fake), base)
