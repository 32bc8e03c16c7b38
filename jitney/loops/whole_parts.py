"""Symbolic sizes that guards keep at multiples of a number: rows cut into whole parts.

A row of ``s`` elements viewed as ``s // 2`` pairs begins every ``2 * (s // 2)`` elements, which is
``s`` by the view's own guard. As polynomials the two are different; they are equal once ``s`` is
written as twice another symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import lcm

from jitney.loops import visit
from jitney.loops.index import (
    Atom,
    Dim,
    FloorDiv,
    Index,
    Mod,
    bare_atom,
    bare_dim,
    floor_div,
    index,
)
from jitney.loops.ir import Assumption, LoopNest


def known_multiples(assumptions: Iterable[Assumption]) -> dict[Dim, int]:
    """The symbols that ``assumptions`` keep at multiples of a number, and the least such number.

    That ``s % n`` is 0 is told as that, or, for a row in parts of ``s // n``, as ``s`` being a
    multiple of them and ``n`` of them.
    """
    kept = {(a.value - a.low) for a in assumptions if a.low is not None and a.low == a.high}
    found: dict[Dim, int] = {}
    for value in kept:
        part = bare_atom(value)
        if not isinstance(part, Mod) or (dim := bare_dim(part.numerator)) is None:
            continue
        number = part.denominator
        if not number.is_const:
            number = _parts_of(dim, number)
            if floor_div(index(dim), part.denominator) - number not in kept:
                continue
        if number.is_const and number.const > 0:
            found[dim] = lcm(found.get(dim, 1), number.const)
    return found


def _parts_of(dim: Dim, part: Index) -> Index:
    """The ``n`` of a part of ``dim // n``; 0 of any other."""
    quotient = bare_atom(part)
    if isinstance(quotient, FloorDiv) and quotient.numerator == index(dim):
        return quotient.denominator
    return index(0)


def in_whole_parts(nest: LoopNest, multiples: Mapping[Dim, int]) -> LoopNest:
    """The nest with each of these symbols written as a multiple of another symbol."""
    sizes: dict[Atom, Index] = {dim: _part(dim, n) * n for dim, n in multiples.items()}
    axes = {
        axis: replace(axis, extent=axis.extent.substitute(sizes))
        for axis in (*nest.axes, *visit.inner_axes(nest.body))
    }
    moved = visit.Renaming(sizes | {old: index(new) for old, new in axes.items()})
    inner = {old: (new,) for old, new in axes.items()}
    body = visit.with_inner_axes(moved.block(nest.body), inner)
    return replace(nest, axes=visit.with_axes(nest.axes, inner), body=body)


def _part(dim: Dim, number: int) -> Index:
    high = None if dim.high is None else dim.high // number
    low = -(-dim.low // number)
    return index(Dim(f"{dim.name} // {number}", low, high, max(dim.hint // number, low)))
