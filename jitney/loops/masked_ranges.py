"""The ranges of axes where a mask holds: under ``i3 < 8`` the axis ``i3`` is below 8."""

from __future__ import annotations

from jitney.loops import ir
from jitney.loops.fold_values import as_position
from jitney.loops.index import Atom, Axis, Index, IndexLike, index
from jitney.loops.invert_index import invert_index

Ranges = dict[Axis, tuple[int, int]]


def invert_masked(
    where: Index, axes: tuple[Axis, ...], target: Index, mask: ir.Expr | None
) -> tuple[tuple[Axis, Index], ...] | None:
    """`invert_index` for a target that only counts where ``mask`` holds."""
    ranges = {} if mask is None else axis_ranges(mask)
    there: dict[Atom, IndexLike] = {}
    back: dict[Atom, IndexLike] = {}
    for axis, (low, high) in ranges.items():
        narrow = Axis(f"{axis.name} from {low}", index(max(high - low, 1)))
        there[axis] = index(narrow) + low
        back[narrow] = index(axis) - low
    if not there:
        return invert_index(where, axes, target)
    at = invert_index(where, axes, target.substitute(there))
    return None if at is None else tuple((axis, v.substitute(back)) for axis, v in at)


def axis_ranges(mask: ir.Expr) -> Ranges:
    """``low <= axis < high`` for axes of constant extent that the mask narrows."""
    ranges: Ranges = {}
    for part in conjuncts(mask):
        bound = _bound(part)
        if bound is None:
            continue
        axis, low, high = bound
        known = ranges.get(axis, (0, int(axis.extent)))
        ranges[axis] = (max(known[0], low), min(known[1], high))
    return {a: r for a, r in ranges.items() if r != (0, int(a.extent))}


def conjuncts(mask: ir.Expr) -> list[ir.Expr]:
    """The conditions that a mask joins by "and"."""
    if isinstance(mask, ir.Op) and mask.op == "and":
        return [c for arg in mask.args for c in conjuncts(arg)]
    return [mask]


def _bound(part: ir.Expr) -> tuple[Axis, int, int] | None:
    """(axis, least, one past the greatest) that a comparison leaves."""
    if not isinstance(part, ir.Op) or part.op not in ("lt", "le", "gt", "ge"):
        return None
    a, b = (as_position(arg) for arg in part.args)
    if a is None or b is None:
        return None
    gap = a - b if part.op in ("lt", "le") else b - a  # gap < 0, or <= 0 where equal is allowed
    most = 0 if part.op in ("le", "ge") else -1
    if len(gap.terms) != 1:
        return None
    ((monomial, factor),) = gap.terms
    if len(monomial) != 1 or not isinstance(monomial[0], Axis) or abs(factor) != 1:
        return None
    axis = monomial[0]
    if not axis.extent.is_const:
        return None
    if factor == 1:
        return axis, 0, most - gap.const + 1
    return axis, gap.const - most, int(axis.extent)
