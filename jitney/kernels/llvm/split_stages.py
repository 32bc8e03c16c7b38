"""Cuts a nest into stages where one long reduction or loop would keep most threads idle.

A long `Reduce` becomes partial results of chunks (first stage, parallel over chunks) and their
reduction (second stage); a long `Loop` runs its chunks in parallel. The chunks depend on sizes
alone, never on the number of threads, so results do not either; and partial sums keep the error
of long float sums small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from jitney.kernels.llvm.nest_cost import product_hint
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import (
    POSITIONAL,
    Expr,
    IndexValue,
    Let,
    Load,
    Loop,
    LoopNest,
    Op,
    Reduce,
    Reduction,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.points import place_among, points_of
from jitney.loops.visit import Renaming, apart, repeatable, statements, stores

#: Elements of one chunk, at least, and the most chunks a row falls into.
_CHUNK, _MOST = 32_768, 64
#: Points of a nest from which it has enough parallelism of its own.
_POINTS = 64


@dataclass(frozen=True)
class Stage:
    """A nest run as one phase. ``limits``: axes that end early, at an index of outer axes.
    ``inner``: the axis within a chunk, where the nest's last axis counts chunks."""

    nest: LoopNest
    limits: Mapping[Axis, Index] = field(default_factory=dict)
    inner: Axis | None = None


@dataclass(frozen=True)
class StagePlan:
    """The stages in order; ``shared`` places the buffers between them (name, byte offset)."""

    stages: tuple[Stage, ...]
    shared: tuple[tuple[str, Index], ...] = ()
    shared_bytes: Index = Index()


@dataclass
class _Shared:
    """Buffers between stages as they are placed."""

    places: list[tuple[str, Index]] = field(default_factory=list)
    size: Index = field(default_factory=Index)

    def add(self, elements: Index, dtype: torch.dtype) -> str:
        name = f"partial {len(self.places)}"
        self.places.append((name, self.size))
        self.size = self.size + (elements * dtype.itemsize + 63) // 64 * 64
        return name


def split_stages(nest: LoopNest) -> StagePlan:
    """The nest as stages; one stage when nothing in it is worth a cut."""
    if any(s.combines or _goes_by_memory(s) for s in stores(nest.body)):
        return StagePlan((Stage(nest),))
    shared, done = _Shared(), []
    rest: LoopNest | None = nest
    while rest is not None:
        position = _long_statement(rest)
        if position is None:
            done.append(Stage(rest))
            break
        stage, rest = _cut(rest, position, shared, f"chunk{len(done)}")
        done.append(stage)
    return StagePlan(tuple(done), tuple(shared.places), shared.size)


def _goes_by_memory(store: Store) -> bool:
    """Whether values say where it stores: of those that go to one place the last has to stay."""
    return any(isinstance(atom, Value) for atom in store.index.atoms())


def _long_statement(nest: LoopNest) -> int | None:
    """The first statement worth cutting, if what stands before it may be repeated cheaply."""
    if product_hint(nest.axes) == 0:
        return None
    for position, stmt in enumerate(nest.body):
        if not isinstance(stmt, Reduce | Loop):
            continue
        if _pieces(nest, stmt) is not None:
            # Every chunk repeats what stands before, and so does the rest of the nest.
            before = nest.body[:position]
            return position if repeatable(before) and apart(before, (stmt,)) else None
        if product_hint(stmt.axes) > 4 * _MOST or isinstance(stmt, Loop):
            return None
    return None


def _pieces(nest: LoopNest, stmt: Reduce | Loop) -> tuple[Axis, int] | None:
    """The axis to cut and the points of it in a chunk."""
    nested = any(isinstance(s, Reduce | Loop) for s in statements(stmt.body))
    results = stmt.results if isinstance(stmt, Reduce) else ()
    positional = any(r.op in POSITIONAL for r in results)
    if not stmt.axes or nested or (positional and len(stmt.axes) > 1):
        return None
    points, length = product_hint(nest.axes), product_hint(stmt.axes)
    long_sum = isinstance(stmt, Reduce) and length >= 4 * _CHUNK
    if not long_sum and (points >= _POINTS or points * length < 4 * _CHUNK):
        return None
    axis = max(stmt.axes, key=lambda a: a.extent.hint())
    extent = axis.extent.hint()
    others = length / max(extent, 1)
    # Where columns run over lanes, a point is one of many lanes: chunks are shorter.
    wanted = max(_CHUNK / others / min(points, 16), extent / _MOST, 1)
    chunk = int(-(-wanted // 256) * 256) if wanted > 128 else int(wanted)
    return (axis, chunk) if extent >= 2 * chunk else None


def _cut(
    nest: LoopNest, position: int, shared: _Shared, kind: str
) -> tuple[Stage, LoopNest | None]:
    """The stage that runs one statement by chunks, and what is left of the nest. ``kind`` names its
    axis as no other cut's: what merges their chunks stands in this stage, too."""
    stmt = nest.body[position]
    assert isinstance(stmt, Reduce | Loop)
    cut = _pieces(nest, stmt)
    assert cut is not None
    axis, length = cut
    chunk = Axis(f"{axis.name}_{kind}", (axis.extent + (length - 1)) // length)
    whole = axis.extent.is_const
    inner = Axis(f"{chunk.name}_in", index(min(length, axis.extent.const) if whole else length))
    moved = Renaming({axis: index(chunk) * length + inner})
    axes = tuple(inner if a == axis else a for a in stmt.axes)
    limits = {}
    if not axis.extent.is_const or axis.extent.const % length:
        limits = {inner: axis.extent - index(chunk) * length}
    before = tuple(s for s in nest.body[:position] if not isinstance(s, Store))
    if isinstance(stmt, Loop):
        loop = Loop(axes, moved.block(stmt.body))
        stage = replace(nest, axes=(*nest.axes, chunk), body=(*before, loop))
        left = nest.body[:position] + nest.body[position + 1 :]
        useful = any(isinstance(s, Store | Loop) for s in left)
        return Stage(stage, limits, inner), replace(nest, body=left) if useful else None
    partial = _Partials(nest, stmt, chunk, length, shared)
    results = tuple(replace(r, value=moved.expr(r.value)) for r in stmt.results)
    reduce = Reduce(axes, moved.block(stmt.body), partial.renamed(results))
    stage = replace(
        nest, axes=(*nest.axes, chunk), body=(*before, reduce, *partial.stores(results))
    )
    body = (*nest.body[:position], *partial.merge(), *nest.body[position + 1 :])
    return Stage(stage, limits, inner), replace(nest, body=body)


class _Partials:
    """The partial results of one cut reduction, in shared buffers."""

    def __init__(
        self, nest: LoopNest, stmt: Reduce, chunk: Axis, length: int, shared: _Shared
    ) -> None:
        self._results, self._chunk, self._length = stmt.results, chunk, length
        self._points, self._place = points_of(nest.axes), place_among(nest.axes)
        size = self._points * chunk.extent
        self._values = [shared.add(size, _value_dtype(r)) for r in stmt.results]
        self._where = {
            k: shared.add(size, torch.int64)
            for k, r in enumerate(stmt.results)
            if r.op in POSITIONAL
        }

    def _at(self, chunk: Axis | Value) -> Index:
        return index(chunk) * self._points + self._place

    def renamed(self, results: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
        """The chunk's own reductions; an argmax is followed by its extreme."""
        out = [replace(r, names=(f"part {r.names[0]}",)) for r in results]
        for k in self._where:
            op, value = POSITIONAL[results[k].op], results[k].value
            out.append(Reduction((f"best {results[k].names[0]}",), op, value, value.dtype))
        return tuple(out)

    def stores(self, results: tuple[Reduction, ...]) -> list[Stmt]:
        """The stores of the partial results, for the first stage."""
        found: list[Stmt] = []
        for k, r in enumerate(results):
            name = r.names[0]
            kind = "best" if k in self._where else "part"
            value = Ref(f"{kind} {name}", _value_dtype(r))
            found.append(Store(self._values[k], self._at(self._chunk), value))
            if k in self._where:
                where = Ref(f"part {name}", torch.int64)
                found.append(Store(self._where[k], self._at(self._chunk), where))
        return found

    def merge(self) -> list[Stmt]:
        """The second stage's reduction, and the positions it picks."""
        merged, lets = [], []
        for k, r in enumerate(self._results):
            load = Load(self._values[k], self._at(self._chunk), _value_dtype(r))
            if k not in self._where:
                merged.append(Reduction(r.names, r.op, load, r.dtype))
                continue
            winner = f"chunk of {r.names[0]}"
            merged.append(Reduction((winner,), r.op, load, torch.int64))
            lets.append(Let(r.names[0], self._position(k, Value(winner))))
        return [Reduce((self._chunk,), (), tuple(merged)), *lets]

    def _position(self, k: int, winner: Value) -> Expr:
        inside = Load(self._where[k], self._at(winner), torch.int64)
        start = IndexValue(index(winner) * self._length, torch.int64)
        return Op("add", (inside, start), torch.int64)


def _value_dtype(r: Reduction) -> torch.dtype:
    return r.value.dtype if r.op in POSITIONAL else r.dtype
