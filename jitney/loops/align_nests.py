"""Which axes of two nests count the same thing, judged by the elements they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitney.loops import ir, visit
from jitney.loops.index import Axis, FloorDiv, Index, Mod, bare_atom, bare_axis, index
from jitney.loops.invert_index import invert_index
from jitney.loops.points import likely_points
from jitney.loops.simplify_nest import split_axis


@dataclass(frozen=True)
class Site:
    """One access: the element, and every axis in scope."""

    buffer: str
    index: Index
    axes: tuple[Axis, ...]


def load_sites(body: tuple[ir.Stmt, ...], axes: tuple[Axis, ...]) -> Iterator[Site]:
    """Every load of a block, and every store that combines."""
    for stmt in body:
        inner = axes
        if isinstance(stmt, ir.Loop | ir.Reduce):
            inner = (*axes, *stmt.axes)
            yield from load_sites(stmt.body, inner)
        if isinstance(stmt, ir.Store) and stmt.combines:
            yield Site(stmt.buffer, stmt.index, axes)
        for load in visit.expr_loads(visit.stmt_exprs(stmt)):
            yield Site(load.buffer, load.index, inner)


def store_sites(body: tuple[ir.Stmt, ...], axes: tuple[Axis, ...]) -> Iterator[Site]:
    """Every store of a block."""
    for stmt in body:
        if isinstance(stmt, ir.Store):
            yield Site(stmt.buffer, stmt.index, axes)
        elif isinstance(stmt, ir.Loop | ir.Reduce):
            yield from store_sites(stmt.body, (*axes, *stmt.axes))


Pairs = tuple[tuple[Axis, Axis], ...]


@dataclass(frozen=True)
class Alignment:
    """Two nests (their axes possibly split) and the outer axes that always agree."""

    a: ir.LoopNest
    b: ir.LoopNest
    pairs: Pairs


def align_nests(a: ir.LoopNest, b: ir.LoopNest) -> Alignment | None:
    """Pairs of outer axes of ``a`` and ``b`` with equal values wherever both touch an element
    that ``a`` writes, or that ``b`` writes and ``a`` reads; with no such element, wherever the
    largest buffer that both read is read.

    None when some shared element cannot be traced.
    """
    for _ in range(6):
        shared, flows = _shared_sites(a, b)
        if not flows and [x.extent for x in a.axes] == [y.extent for y in b.axes]:
            return Alignment(a, b, tuple(zip(a.axes, b.axes, strict=True)))
        found = _pairs(a, b, shared)
        if found is None:
            return None
        pairs, cut = found
        if cut is None:
            return Alignment(a, b, pairs)
        side, axis, by = cut
        if side == "a":
            a = split_axis(a, axis, by)
        else:
            b = split_axis(b, axis, by)
    return None


def _shared_sites(a: ir.LoopNest, b: ir.LoopNest) -> tuple[list[tuple[Site, Site]], bool]:
    """(site of a, site of b) that should coincide, and whether they must: one of them writes."""
    a_stores, b_stores = list(store_sites(a.body, a.axes)), list(store_sites(b.body, b.axes))
    a_loads, b_loads = list(load_sites(a.body, a.axes)), list(load_sites(b.body, b.axes))
    flow = [(s, t) for s in a_stores for t in b_loads if s.buffer == t.buffer]
    flow += [(s, t) for s in a_loads for t in b_stores if s.buffer == t.buffer]
    flow += [(s, t) for s in a_stores for t in b_stores if s.buffer == t.buffer]
    if flow:
        return flow, True
    firsts = {t.buffer: t for t in reversed(b_loads)}
    largest = max((s for s in a_loads if s.buffer in firsts), key=_span, default=None)
    return [] if largest is None else [(largest, firsts[largest.buffer])], False


def _span(site: Site) -> int:
    atoms = site.index.atoms()
    return likely_points(axis for axis in site.axes if axis in atoms)


Cut = tuple[str, Axis, Index]


def _pairs(
    a: ir.LoopNest, b: ir.LoopNest, shared: list[tuple[Site, Site]]
) -> tuple[Pairs, Cut | None] | None:
    """Pairs that hold at every shared site, or an axis to split first; None: no answer."""
    agreed: dict[Axis, Axis] | None = None
    outer_a, outer_b = set(a.axes), set(b.axes)
    for mine, other in shared:
        found = _solved(mine, other, outer_a, outer_b)
        if found is None:
            return None
        for axis, value in found.items():
            cut = _cut(axis, value, outer_b)
            if cut is not None:
                return (), cut
        here = {
            axis: partner
            for axis, value in found.items()
            if (partner := bare_axis(value)) in outer_b and partner.extent == axis.extent
        }
        agreed = here if agreed is None else {x: y for x, y in agreed.items() if here.get(x) == y}
    agreed = agreed or {}
    order = {axis: i for i, axis in enumerate(b.axes)}
    unique = {y: x for x, y in agreed.items()}
    pairs = sorted(((x, y) for y, x in unique.items()), key=lambda pair: order[pair[1]])
    return tuple(pairs), None


def _solved(
    mine: Site, other: Site, outer_a: set[Axis], outer_b: set[Axis]
) -> dict[Axis, Index] | None:
    """Outer axes of ``mine`` as functions of ``other``'s where both name the same element."""
    at = invert_index(mine.index, mine.axes, other.index)
    if at is not None:
        return {axis: value for axis, value in at if axis in outer_a}
    back = invert_index(other.index, other.axes, mine.index)
    if back is None:
        return None
    inverse = {x: index(y) for y, v in back if y in outer_b and (x := bare_axis(v)) in outer_a}
    return {x: y for x, y in inverse.items() if isinstance(x, Axis)}


def _cut(axis: Axis, value: Index, outer_b: set[Axis]) -> Cut | None:
    """An axis to split so that ``axis`` and its partner can be paired."""
    atom = bare_atom(value)
    if isinstance(atom, FloorDiv | Mod):
        inside = bare_axis(atom.numerator)
        if inside is not None and inside in outer_b and _divides(atom.denominator, inside):
            return "b", inside, atom.denominator
    if len(value.terms) == 2 and not value.const:
        for monomial, factor in value.terms:
            axes = [x for x in monomial if isinstance(x, Axis)]
            if len(axes) == 1 and axes[0] in outer_b and (factor != 1 or len(monomial) > 1):
                by = value.coefficient(axes[0])
                if by is not None and _divides(by, axis):
                    return "a", axis, by
    return None


def _divides(by: Index, axis: Axis) -> bool:
    if by == axis.extent:
        return False
    high = axis.extent // by
    return high * by == axis.extent and high != Index((), 1)
