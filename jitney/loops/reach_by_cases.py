"""Bounds of an index, for a few values of its symbol at a time.

Ordinary bounds know the range of a symbol, but not what two places have in common: ``s * (8 // s)``
is at most 8, but with ``2 <= s`` they find no upper end. They do for a single value of ``s``, or
for all values from which on ``8 // s`` is 0. Values that guards exclude need not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from jitney.loops.index import Axis, Dim, Index, IndexLike, index
from jitney.loops.ir import Assumption

#: So many ranges of values are looked at.
MOST_CASES = 200


def stays_inside(
    where: Index, axes: Iterable[Axis], size: int, assumptions: Sequence[Assumption]
) -> bool:
    """Whether bounds show ``0 <= where < size``, case by case, for all that ``axes`` count and the
    values of its one symbol that ``assumptions`` allow. False where it has several, or none."""
    around = tuple(sorted(axes, key=lambda axis: axis.name))
    return _stays_inside(where, around, size, tuple(assumptions))


def begins_before(start: Index, shape: Sequence[Index], assumptions: Sequence[Assumption]) -> bool:
    """Whether ``start`` of a view is known to be negative: at likely sizes, or at one of the first
    values of its one symbol that ``assumptions`` allow and that leave ``shape`` elements."""
    least = start.bounds()[0]
    if least is None or least >= 0:
        return False
    if start.hint() < 0:
        return True
    dims = _dims(start)
    if len(dims) != 1:
        return False
    (dim,) = dims
    told = [a for a in assumptions if _dims(a.value) == {dim}]
    last = dim.low + MOST_CASES if dim.high is None else min(dim.high + 1, dim.low + MOST_CASES)
    for value in range(dim.low, last):
        case = {dim: index(value)}
        if start.substitute(case).hint() < 0 and not _excluded(case, told):
            if all(size.substitute(case) != Index() for size in shape):
                return True
    return False


@lru_cache(maxsize=1024)
def _stays_inside(
    where: Index, axes: tuple[Axis, ...], size: int, assumptions: tuple[Assumption, ...]
) -> bool:
    dims = _dims(where)
    if len(dims) != 1:
        return False
    (dim,) = dims
    told = [a for a in assumptions if _dims(a.value) == {dim}]
    open_cases = [(dim.low, dim.high)]
    for _ in range(MOST_CASES):
        if not open_cases:
            return True
        low, high = open_cases.pop()
        case = {dim: index(low) if low == high else index(Dim(dim.name, low, high, dim.hint))}
        if _excluded(case, told) or _is_inside(where, axes, size, case):
            continue
        if low == high:
            return False
        middle = 2 * low + 1 if high is None else (low + high) // 2
        open_cases += [(middle + 1, high), (low, middle)]
    return False


def _dims(value: Index) -> set[Dim]:
    atoms = value.atoms()
    within = [a.extent.atoms() if isinstance(a, Axis) else (a,) for a in atoms]
    return {atom for each in within for atom in each if isinstance(atom, Dim)}


def _excluded(case: dict[Dim, Index], told: Sequence[Assumption]) -> bool:
    """Whether guards allow no value of the case."""
    for assumption in told:
        low, high = assumption.value.substitute(case).bounds()
        if assumption.high is not None and low is not None and low > assumption.high:
            return True
        if assumption.low is not None and high is not None and high < assumption.low:
            return True
    return False


def _is_inside(where: Index, axes: tuple[Axis, ...], size: int, case: dict[Dim, Index]) -> bool:
    """Whether bounds show it for the case, or that a loop does not run."""
    given: dict[Any, IndexLike] = dict(case)
    for axis in axes:
        extent = axis.extent.substitute(case)
        most = extent.bounds()[1]
        if most is not None and most <= 0:
            return True
        given[axis] = Axis(axis.name, extent)
    low, high = where.substitute(given).bounds()
    return low is not None and high is not None and 0 <= low and high < size
