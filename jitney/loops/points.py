"""How many points axes have together, which of them one is, and how far apart they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitney.loops.index import Axis, Index, index


def points_of(axes: Iterable[Axis]) -> Index:
    """How many points the axes have together."""
    total = index(1)
    for axis in axes:
        total = total * axis.extent
    return total


def likely_points(axes: Iterable[Axis]) -> int:
    """The same with symbolic sizes taken at their hints."""
    total = 1
    for axis in axes:
        total *= axis.extent.hint()
    return total


def place_among(axes: Iterable[Axis]) -> Index:
    """The number of a point among them, the last axis running fastest."""
    place = index(0)
    for axis in axes:
        place = place * axis.extent + axis
    return place


def row_major(shape: Sequence[Index]) -> tuple[Index, ...]:
    """The strides of dimensions that lie without gaps, the last one fastest."""
    strides, step = [], index(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))
