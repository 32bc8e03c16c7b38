"""Chooses how a loop nest maps to lanes, unrolled vectors, loops and threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jitney.kernels.llvm.emit_body import InnerPlan
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.nest_cost import (
    Place,
    lanes_for,
    places,
    product_hint,
    scalar_cost,
    varying_names,
    vector_cost,
)
from jitney.kernels.llvm.transpose_tile import (
    MOST_LANES,
    TiledBody,
    best_tile,
    rows_at_hand,
    tile_width,
)
from jitney.loops import visit
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Loop, LoopNest, Reduce, Stmt, Store
from jitney.loops.points import points_of

CYCLES_PER_NANOSECOND = 3.0
_SERIAL = 15_000.0  # cycles below which a nest is one work item
_ITEM = 3_000.0  # cycles a work item should have


@dataclass(frozen=True)
class Schedule:
    """``items`` axes are flattened into work items, ``inner`` ones loop inside an item, ``vector``
    runs innermost over ``lanes`` with ``unroll`` vectors at once; ``block`` of its points belong
    to an item (None: all). Without ``vector`` each point is a row and its reductions and loops
    run as ``plans`` say, in the order they stand in the body. With ``tile`` the body loops over
    the tile's axis inside each vector, ``tile_block`` of its points in an item (None: all). An
    item takes ``nanoseconds``.
    """

    inner: tuple[Axis, ...]
    vector: Axis | None = None
    lanes: int = 0
    unroll: int = 1
    plans: tuple[InnerPlan, ...] = ()
    tile: TiledBody | None = None
    items: tuple[Axis, ...] = ()
    block: int | None = None
    tile_block: int | None = None
    nanoseconds: float = 0.0

    def item_count(self) -> Index:
        """Work items of the phase."""
        count = points_of(self.items)
        for axis, size in self.blocks():
            count = count * ((axis.extent + (size - 1)) // size)
        return count

    def blocks(self) -> tuple[tuple[Axis, int], ...]:
        """The axes of which an item has a block, and its points; the first varies fastest: items
        that follow each other read the same rows of a tile."""
        blocks: list[tuple[Axis, int]] = []
        if self.tile is not None and self.tile_block is not None:
            blocks.append((self.tile.axis, self.tile_block))
        if self.vector is not None and self.block is not None:
            blocks.append((self.vector, self.block))
        return tuple(blocks)


def schedule_nest(nest: LoopNest, isa: Isa, cores: int, limits: Collection[Index] = ()) -> Schedule:
    """The cheapest of: each nest axis over lanes, or rows whose inner loops use lanes.

    ``limits``: where loops inside end early, which is the same for all lanes.
    """
    found = list(places(nest.body))
    lanes = lanes_for(nest.body, isa)
    rows = _row_choice(nest.body, found, lanes, isa)
    best: tuple[float, Axis | None] = (rows[0], None)
    for axis in nest.axes:
        single = axis.extent.is_const and axis.extent.const < 2
        if single or any(axis in limit.atoms() for limit in limits):
            continue
        width = fitting_lanes(axis, lanes)
        tiled = best_tile(nest.body, axis, nest.axes)
        loads = tiled.loads if tiled else ()
        cost = vector_cost(found, axis, width, varying_names(nest.body, axis), isa, loads)
        if cost < best[0] * 0.999:
            best = (cost, axis)
    cycles, vector = best
    total = cycles * product_hint(nest.axes)
    if vector is None:
        return _distributed(Schedule(nest.axes, plans=rows[1]), nest, total, cores)
    width = fitting_lanes(vector, lanes)
    tile = best_tile(nest.body, vector, nest.axes)
    if tile is None:
        outer = tuple(a for a in nest.axes if a != vector)
        chosen = Schedule(outer, vector, width, _unroll(vector, width, found))
    else:
        outer = tuple(a for a in nest.axes if a not in (vector, tile.axis))
        chosen = Schedule(outer, vector, min(width, MOST_LANES), tile=tile)
    return _distributed(chosen, nest, total, cores)


def fitting_lanes(axis: Axis, lanes: int) -> int:
    """As many lanes as the target has, but no more than the axis needs."""
    if axis.extent.is_const:
        return max(2, min(lanes, 1 << max(axis.extent.const - 1, 1).bit_length()))
    return lanes


def _unroll(axis: Axis, lanes: int, found: Sequence[Place]) -> int:
    """More vectors at once for short bodies, and for reductions to fill cache lines."""
    reduces = [p for p in found if isinstance(p.stmt, Reduce)]
    weight = sum(len(list(visit.expr_nodes(visit.stmt_exprs(p.stmt)))) for p in found)
    most = 4 if weight <= 10 or (reduces and weight <= 24) else 2 if weight <= 24 else 1
    extent = axis.extent.hint()
    while most > 1 and (
        extent < lanes * most or (axis.extent.is_const and extent % (lanes * most))
    ):
        most //= 2
    return most


def _row_choice(
    body: Sequence[Stmt], found: Sequence[Place], lanes: int, isa: Isa
) -> tuple[float, tuple[InnerPlan, ...]]:
    """Cycles per point, and the plans, when each point is a row of its own."""
    outside = [p for p in found if not p.axes]
    total = scalar_cost(outside)
    plans = []
    for stmt in visit.statements(body):
        if not isinstance(stmt, Reduce | Loop):
            continue
        cost, plan = _inner_choice(stmt, body, lanes, isa)
        plans.append(plan)
        if any(stmt is p.stmt for p in outside):
            total += cost
    return total, tuple(plans)


def _inner_choice(
    stmt: Reduce | Loop, body: Sequence[Stmt], lanes: int, isa: Isa
) -> tuple[float, InnerPlan]:
    inside = [p for p in places((stmt,)) if p.axes]
    best = scalar_cost(inside)
    plan = InnerPlan(stmt.axes)
    if any(isinstance(s, Reduce | Loop) for s in stmt.body):
        return best, plan
    for axis in stmt.axes:
        if axis.extent.is_const and axis.extent.const < 2:
            continue
        width = fitting_lanes(axis, lanes)
        cost = vector_cost(inside, axis, width, varying_names(body, axis), isa) + 8
        if cost < best:
            serial = tuple(a for a in stmt.axes if a != axis)
            best, plan = cost, InnerPlan(serial, axis, width, _inner_unroll(stmt, axis, width))
    return best, plan


def _inner_unroll(stmt: Reduce | Loop, axis: Axis, lanes: int) -> int:
    weight = len(list(visit.body_exprs((stmt,))))
    most = 4 if weight <= 12 else 2
    if isinstance(stmt, Reduce) and len(stmt.results) * most > 8:
        most = 2
    while most > 1 and axis.extent.hint() < 2 * lanes * most:
        most //= 2
    return most


def _distributed(chosen: Schedule, nest: LoopNest, cycles: float, cores: int) -> Schedule:
    """``chosen``, its axes distributed over work items and loops inside them. ``cycles``: of the
    whole nest."""
    separate = _collision_free(nest, chosen.vector)
    if cycles < _SERIAL or separate is False:
        return replace(chosen, nanoseconds=cycles / CYCLES_PER_NANOSECOND)
    if separate:  # threads own columns
        return _in_blocks(chosen, 4 * cores, cycles)
    wanted = 8 * cores
    items = list(chosen.inner)
    inner: list[Axis] = []
    per_item = cycles / max(product_hint(items), 1.0)
    while items and per_item < _ITEM and product_hint(items[:-1]) >= wanted:
        axis = items.pop()
        inner.insert(0, axis)
        per_item *= max(axis.extent.hint(), 1)
    chosen = replace(chosen, items=tuple(items), inner=tuple(inner))
    count = product_hint(items)
    pieces = min(wanted / max(count, 1), per_item / _ITEM)
    if chosen.tile is not None:
        return _in_tiles(chosen, chosen.tile, pieces, per_item)
    if chosen.vector is not None and count < wanted and per_item > 2 * _ITEM:
        return _in_blocks(chosen, pieces, per_item)
    return replace(chosen, nanoseconds=per_item / CYCLES_PER_NANOSECOND)


def _in_tiles(chosen: Schedule, tile: TiledBody, pieces: float, cycles: float) -> Schedule:
    """Each item, of ``cycles``, cut along the vector axis into rows whose pages stay at hand, and
    along the tile's axis until there are ``pieces`` or so."""
    vector = chosen.vector
    assert vector is not None
    cuts = vector.extent.hint() / rows_at_hand(tile, vector)
    if cuts > 1:
        chosen = _in_blocks(chosen, cuts, cycles)
    rows = math.ceil(cuts)
    if pieces < 2 * rows:
        return replace(chosen, nanoseconds=cycles / rows / CYCLES_PER_NANOSECOND)
    width = tile_width(tile.axis, chosen.lanes)
    block = _block(tile.axis, width, pieces / rows)
    cycles /= rows * max(1, math.ceil(tile.axis.extent.hint() / block))
    return replace(chosen, tile_block=block, nanoseconds=cycles / CYCLES_PER_NANOSECOND)


def _in_blocks(chosen: Schedule, pieces: float, cycles: float) -> Schedule:
    """Each item, of ``cycles``, cut into ``pieces`` or so along the vector axis."""
    vector = chosen.vector
    assert vector is not None
    block = _block(vector, chosen.lanes * chosen.unroll, pieces)
    cycles /= max(1, math.ceil(vector.extent.hint() / block))
    return replace(chosen, block=block, nanoseconds=cycles / CYCLES_PER_NANOSECOND)


def _block(vector: Axis, step: int, pieces: float) -> int:
    """Points of the vector axis an item takes: whole steps, an even cut where there is one."""
    extent = max(vector.extent.hint(), 1)
    least = max(1, math.ceil(pieces))
    if vector.extent.is_const:
        for count in range(least, 2 * least + 1):
            if extent % count == 0 and extent // count % step == 0:
                return extent // count
    return max(step, -(-math.ceil(extent / least) // step) * step)


def _collision_free(nest: LoopNest, vector: Axis | None) -> bool | None:
    """None without colliding stores; else whether points of ``vector`` never collide."""
    adds = [s for s in visit.statements(nest.body) if isinstance(s, Store) and s.combines]
    if not adds:
        return None
    return vector is not None and all(_separates(s.index, vector) for s in adds)


def _separates(position: Index, axis: Axis) -> bool:
    """Whether different values of ``axis`` always give different positions, because it is the
    lowest digit of the position."""
    stride = position.coefficient(axis)
    if stride is None or not stride.is_const or stride.const <= 0 or not axis.extent.is_const:
        return False
    span = stride.const * axis.extent.const
    rest = position - index(axis) * stride.const
    return all(c % span == 0 for _, c in rest.terms)
