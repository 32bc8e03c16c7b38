"""A long reduction whose length has no fit divisor, or is symbolic, is given one.

An axis of 1,000,003 points becomes 528 chunks of 1,920 steps. Beyond the end nothing is read, and
the value is one that changes nothing. `split_reduction` then has chunks to make partial results of.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from jitney.loops.index import Axis, Index, index
from jitney.loops.interpret_ops import extreme
from jitney.loops.ir import (
    POSITIONAL,
    Const,
    Expr,
    IndexValue,
    Let,
    Load,
    LoopNest,
    Op,
    Reduce,
    Reduction,
    Ref,
    Scalar,
    Stmt,
)
from jitney.loops.points import likely_points, points_of
from jitney.loops.visit import Renaming, bound_names, map_expr, stores

#: Steps of a chunk come in multiples of this, so that chunks of a row begin at even addresses.
STEPS = 64
#: Points from which moments are worth two passes; a row of fewer is left to one program.
WORTH_TWO_PASSES = 1 << 16

_IDENTITIES: dict[str, Scalar] = {"sum": 0, "xor": 0, "prod": 1, "any": False, "all": True}


def pad_reduction(nest: LoopNest, wanted: int) -> LoopNest:
    """``nest`` with each reduction over axes of which leading ones count ``wanted`` chunks or
    somewhat fewer, where no even cut comes near."""
    body: list[Stmt] = []
    for stmt in nest.body:
        if not isinstance(stmt, Reduce) or stores(stmt.body):
            body.append(stmt)
            continue
        moments = any(r.op == "welford" for r in stmt.results)
        padded = _Padded(stmt, wanted)
        if not padded.chunks or (moments and likely_points(stmt.axes) < WORTH_TWO_PASSES):
            body.append(stmt)
        elif moments:
            body += _moments(stmt, padded)
        else:
            body.append(padded.reduce(stmt.body, stmt.results))
    return replace(nest, body=tuple(body))


def even_parts(extent: int, wanted: int) -> int:
    """The most equal parts, of ``wanted`` or fewer."""
    return max(d for d in range(1, max(1, min(wanted, extent)) + 1) if extent % d == 0)


class _Padded:
    """How the axes of one reduction are cut."""

    def __init__(self, stmt: Reduce, wanted: int) -> None:
        self.axes, self.moved = stmt.axes, dict[Axis, Index]()
        self.chunks: list[Axis] = []
        whole: list[Axis] = []
        inner: list[Axis] = []
        first_alone = any(r.op in POSITIONAL for r in stmt.results)
        for position, axis in enumerate(stmt.axes):
            parts = 0 if first_alone and position else _parts(axis, wanted)
            if parts > 1:
                inner.append(self._cut(axis, parts))
                wanted //= parts
            elif not self.chunks and axis.extent.is_const and int(axis.extent) <= wanted:
                whole.append(axis)  # counts chunks as it is
                wanted //= int(axis.extent)
            else:
                inner.append(axis)
                wanted = 0 if axis.extent.is_const else wanted
        self.order = (*whole, *self.chunks, *inner)

    def _cut(self, axis: Axis, parts: int) -> Axis:
        chunk = Axis(axis.name + "_chunk", index(parts))
        steps = (axis.extent + (parts * STEPS - 1)) // (parts * STEPS) * STEPS
        if axis.extent.hint() < parts * STEPS:
            steps = (axis.extent + (parts - 1)) // parts
        step = Axis(axis.name + "_step", steps)
        self.chunks.append(chunk)
        self.moved[axis] = index(chunk) * steps + step
        return step

    def reduce(self, body: tuple[Stmt, ...], results: tuple[Reduction, ...]) -> Reduce:
        """The reduction over the cut axes."""
        renaming, inside = Renaming(self.moved), self._inside()
        lets = [Let(s.name, self._guarded(renaming.expr(s.value))) for s in body]  # type: ignore[union-attr]
        kept = []
        for result in results:
            value = self._guarded(renaming.expr(result.value))
            nothing = Const(_identity(result.op, value.dtype), value.dtype)
            value = Op("where", (inside, value, nothing), value.dtype)
            kept.append(replace(result, value=value))
        return Reduce(self.order, tuple(lets), tuple(kept))

    def _inside(self) -> Expr:
        """Whether a point is one of the reduction's."""
        tests = [_below(place, axis.extent) for axis, place in self.moved.items()]
        inside: Expr = tests[0]
        for test in tests[1:]:
            inside = Op("and", (inside, test), torch.bool)
        return inside

    def _guarded(self, expr: Expr) -> Expr:
        """``expr``, in which nothing is read beyond the end."""
        inside, made = self._inside(), {*self.chunks, *self.order}

        def guard(part: Expr) -> Expr:
            if not isinstance(part, Load) or made.isdisjoint(part.index.atoms()):
                return part
            mask = inside if part.mask is None else Op("and", (inside, part.mask), torch.bool)
            return replace(part, mask=mask)

        return map_expr(expr, guard, {})


def _parts(axis: Axis, wanted: int) -> int:
    """Into how many parts an axis is cut unevenly; 0 where that is not needed, or of no use."""
    likely = axis.extent.hint()
    if axis.extent.is_const and 2 * even_parts(likely, wanted) >= min(wanted, likely):
        return 0
    return min(wanted, likely)


def _below(place: Index, end: Index) -> Expr:
    return Op("lt", (IndexValue(place, torch.int64), IndexValue(end, torch.int64)), torch.bool)


def _identity(op: str, dtype: torch.dtype) -> Scalar:
    if op in _IDENTITIES:
        return bool(_IDENTITIES[op]) if dtype == torch.bool else _IDENTITIES[op]
    return extreme(POSITIONAL.get(op, op), dtype)


def _moments(stmt: Reduce, padded: _Padded) -> list[Stmt]:
    """Mean and sum of squared distances from it, in two passes: chunks of different lengths do
    not combine as simply as equal ones."""
    found: list[Stmt] = []
    for result in stmt.results:
        if result.op != "welford":
            found.append(padded.reduce(*_renamed(stmt, result, f"_of_{result.names[0]}")))
            continue
        mean, squares, count = result.names
        dtype, value = result.dtype, result.value
        total = Reduction((mean + "_sum",), "sum", value, dtype)
        found.append(padded.reduce(*_renamed(stmt, total, f"_of_{mean}")))
        points = Op("cast", (IndexValue(points_of(padded.axes), torch.int64),), dtype)
        found.append(Let(count, points))
        average = Op("div", (Ref(total.names[0], dtype), Ref(count, dtype)), dtype)
        found.append(Let(mean, average))
        away = Op("square", (Op("sub", (value, Ref(mean, dtype)), dtype),), dtype)
        apart = Reduction((squares,), "sum", away, dtype)
        found.append(padded.reduce(*_renamed(stmt, apart, f"_of_{squares}")))
    return found


def _renamed(
    stmt: Reduce, result: Reduction, suffix: str
) -> tuple[tuple[Stmt, ...], tuple[Reduction, ...]]:
    """The body of ``stmt``, whose names are its own, and one result of it."""
    names = {name: name + suffix for name in bound_names(stmt.body)}
    renaming = Renaming({}, names)
    value = renaming.expr(result.value)
    return renaming.block(stmt.body), (replace(result, value=value),)
