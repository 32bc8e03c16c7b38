"""What a loop nest costs under a choice of vector axis: cycles, roughly, only to choose by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from jitney.kernels.llvm.isa import Isa
from jitney.loops import visit
from jitney.loops.index import Axis, FloorDiv, Index, Mod, Value
from jitney.loops.ir import Expr, IndexValue, Let, Load, Loop, Op, Reduce, Ref, Stmt, Store

#: Cycles of one vector of an operation; those not named cost 1.
_HEAVY = {
    **dict.fromkeys(("exp", "exp2", "sigmoid"), 14),
    **dict.fromkeys(("log", "log2", "log10", "tanh", "erf", "sin", "cos"), 20),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 6),
    **dict.fromkeys(("pow", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh"), 50),
    **dict.fromkeys(("atanh", "atan2", "erfc", "lgamma", "log1p", "expm1", "fmod"), 50),
    **dict.fromkeys(("remainder", "floordiv", "hypot"), 50),
}
_GATHERED = 1.5  # cycles an element
_SCATTERED = 2.0
_TILED = 0.5  # cycles an element, however wide the body computes


def op_cycles(expr: Expr) -> int:
    """Cycles of one vector of the expression's own operation."""
    return _HEAVY.get(expr.op, 1) if isinstance(expr, Op) else 0


@dataclass(frozen=True)
class Place:
    """A statement, how often it runs per point of the nest, and the axes round it."""

    stmt: Stmt
    trips: float
    axes: tuple[Axis, ...]


def places(
    body: Sequence[Stmt], trips: float = 1.0, axes: tuple[Axis, ...] = ()
) -> Iterator[Place]:
    """Every statement with its loops."""
    for stmt in body:
        yield Place(stmt, trips, axes)
        if isinstance(stmt, Reduce | Loop):
            inner = trips * product_hint(stmt.axes)
            yield Place(stmt, inner, (*axes, *stmt.axes))
            yield from places(stmt.body, inner, (*axes, *stmt.axes))


def product_hint(axes: Iterable[Axis]) -> float:
    """The likely number of points of some axes."""
    total = 1.0
    for axis in axes:
        total *= max(axis.extent.hint(), 0)
    return total


def lanes_for(body: Sequence[Stmt], isa: Isa) -> int:
    """Lanes that fill one register with the widest element the body computes with.

    64-bit integers beside 32-bit floats (indices, positions) do not count.
    """
    sizes = [4 if e.dtype in (torch.float16, torch.bfloat16) and isinstance(e, Op) else
             e.dtype.itemsize for e in visit.body_exprs(body)
             if not isinstance(e, IndexValue | Ref)]  # fmt: skip
    dtypes = {e.dtype for e in visit.body_exprs(body)}
    if torch.float64 not in dtypes and any(d.is_floating_point for d in dtypes):
        sizes = [min(s, 4) for s in sizes]
    return isa.bits // 8 // max(sizes, default=4)


def varying_names(body: Sequence[Stmt], axis: Axis) -> frozenset[str]:
    """Lets and results whose value depends on ``axis``."""
    names: set[str] = set()
    for place in places(body):
        stmt = place.stmt
        if isinstance(stmt, Let) and _varies((stmt.value,), axis, names):
            names.add(stmt.name)
        elif isinstance(stmt, Reduce):
            inside = [e for s in visit.statements(stmt.body) for e in visit.stmt_exprs(s)]
            if _varies([*inside, *(r.value for r in stmt.results)], axis, names):
                names.update(n for r in stmt.results for n in r.names)
    return frozenset(names)


def _varies(exprs: Sequence[Expr], axis: Axis, names: set[str]) -> bool:
    for e in visit.expr_nodes(exprs):
        if isinstance(e, Ref) and e.name in names:
            return True
        if isinstance(e, Load | IndexValue) and _mentions(e.index, axis, names):
            return True
    return False


def _mentions(position: Index, axis: Axis, names: Iterable[str]) -> bool:
    atoms = position.atoms()
    return axis in atoms or any(isinstance(a, Value) and a.name in names for a in atoms)


def step(position: Index, axis: Axis, lanes: int, varying: frozenset[str]) -> int | None:
    """0, 1, or another stride of the index along ``axis``; None where it is irregular.

    A quotient or remainder by whole vectors counts as regular, as the emitter treats it.
    """
    if not _mentions(position, axis, varying):
        return 0
    if any(isinstance(a, Value) and a.name in varying for a in position.atoms()):
        return None
    stride = position.coefficient(axis)
    if stride is not None:
        return stride.const if stride.is_const else 1 << 20
    total = 0
    for monomial, factor in position.terms:
        for atom in monomial:
            if atom == axis:
                total += factor
            elif isinstance(atom, FloorDiv | Mod) and axis in atom.numerator.atoms():
                inner = atom.numerator.coefficient(axis)
                whole = atom.denominator.is_const and atom.denominator.const % lanes == 0
                if inner is None or not inner.is_const or inner.const != 1 or not whole:
                    return None
                total += factor if isinstance(atom, Mod) else 0
    return total


def vector_cost(
    found: Sequence[Place],
    axis: Axis,
    lanes: int,
    varying: frozenset[str],
    isa: Isa,
    tiled: Sequence[Load] = (),
) -> float:
    """Cycles per point (of everything but ``axis``'s own vectors) with ``axis`` over lanes;
    ``tiled`` loads are transposed through tiles."""
    by_tile = {id(e) for e in tiled}
    extent = axis.extent.hint()
    waste = -(-extent // lanes) * lanes / max(extent, 1)
    vectors = max(1.0, lanes * 4 * 8 / isa.bits)
    total = 0.0
    for place in found:
        exprs = list(visit.expr_nodes(visit.stmt_exprs(place.stmt)))
        cycles = sum(_HEAVY.get(e.op, 1) for e in exprs if isinstance(e, Op)) * waste / lanes
        if isinstance(place.stmt, Reduce):
            cycles += 1.0 / lanes
        for e in exprs:
            if id(e) in by_tile:
                cycles += _TILED / vectors
            elif isinstance(e, Load):
                cycles += _access(step(e.index, axis, lanes, varying), lanes, waste, _GATHERED)
        if isinstance(place.stmt, Store):
            cycles += _access(
                step(place.stmt.index, axis, lanes, varying), lanes, waste, _SCATTERED
            )
        total += cycles * place.trips * vectors
    return total


def _access(stride: int | None, lanes: int, waste: float, irregular: float) -> float:
    if stride == 1:
        return 1.0 * waste / lanes
    return 0.5 * waste / lanes if stride == 0 else irregular


def scalar_cost(found: Sequence[Place]) -> float:
    """Cycles per point with no lanes at all."""
    total = 0.0
    for place in found:
        exprs = visit.expr_nodes(visit.stmt_exprs(place.stmt))
        total += place.trips * (1 + sum(
            _HEAVY.get(e.op, 1) if isinstance(e, Op) else 1 for e in exprs))  # fmt: skip
    return total
