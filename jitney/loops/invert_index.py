"""Which point of a nest touches a given element: an access index solved for its axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from jitney.loops.index import Axis, Index
from jitney.loops.index_division import counted, in_range, least, split_multiple

_ONE = Index((), 1)


@lru_cache(maxsize=16384)
def mixed_radix(where: Index, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, Index], ...] | None:
    """(axis, stride) by falling stride when ``where`` visits each element at most once, else None.

    Holds when ``where`` is linear in every axis, no axis of extent > 1 has stride 0, and each
    stride is at least what the axes below it span. What is left of ``where`` is the offset.
    """
    found: list[tuple[Axis, Index]] = []
    for axis in axes:
        if axis.extent == _ONE:
            continue
        stride = where.coefficient(axis)
        if stride is None or not (stride.terms or stride.const):
            return None
        found.append((axis, stride))
    found.sort(key=lambda item: -item[1].hint())
    for (_, outer), (axis, stride) in zip(found, found[1:], strict=False):
        gap = outer if outer == stride * axis.extent else outer - stride * axis.extent
        low = 0 if gap is outer else least(gap, counted(where))
        if low is None or low < 0:
            return None
    if found:
        low = found[-1][1].bounds()[0]
        if low is None or low < 1:
            return None
    return tuple(found)


@lru_cache(maxsize=16384)
def invert_index(
    where: Index, axes: tuple[Axis, ...], target: Index
) -> tuple[tuple[Axis, Index], ...] | None:
    """Values of ``axes`` at which ``where`` equals ``target``, None where it cannot be solved.

    Right only for a ``target`` that some point of the axes does reach.
    """
    digits = mixed_radix(where, axes)
    if digits is None:
        return None
    offset = where.substitute(dict.fromkeys(axes, 0))
    rest = target - offset
    values = _digits_apart(rest, digits)
    if values is None:
        values = []
        for position, (axis, stride) in enumerate(digits):
            values.append((axis, rest // stride))
            if position + 1 < len(digits):
                rest = rest % stride
    return (*((axis, Index()) for axis in axes if axis.extent == _ONE), *values)


def _digits_apart(
    rest: Index, digits: tuple[tuple[Axis, Index], ...]
) -> list[tuple[Axis, Index]] | None:
    """The digits of ``rest`` where its terms show them: multiples of the strides, each in its
    axis's range. Divisions would need to know that strides such as ``s + 5`` are positive."""
    values = []
    for axis, stride in digits:
        whole, rest = split_multiple(rest, stride)
        values.append((axis, whole or Index()))
    apart = rest == Index() and all(in_range(value, axis.extent) for axis, value in values)
    return values if apart else None


def same_iteration(
    where: Index, axes: tuple[Axis, ...], target: Index, shared: Sequence[Axis]
) -> bool:
    """Whether ``where``, under ``axes``, is the element ``target`` only where the axes ``shared``
    are as ``target`` counts them."""
    at = invert_index(where, axes, target)
    found = {} if at is None else dict(at)
    return at is not None and all(found.get(a) == Index((((a,), 1),)) for a in shared)
