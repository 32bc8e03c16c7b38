"""A long reduction to few numbers becomes two nests: partial results of chunks, then the whole.

One row per program leaves most of a GPU idle when there are fewer rows than multiprocessors: a bias
gradient sums 16,384 rows into 768 columns, batch norm takes the moments of millions of rows by
channel, a loss sums everything into one number. The statements of such a nest are distributed in
order. A `Reduce` becomes a nest over (chunk, row) that stores partial results; the next nest
combines them and goes on with what follows; a `Loop` over the row becomes a nest of its own. What a
nest needs from an earlier one is passed in memory, one number a row; what depends on no reduction
is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import (
    POSITIONAL,
    Buffer,
    Const,
    Expr,
    IndexValue,
    Let,
    Load,
    Loop,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    Reduce,
    Reduction,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.pad_reduction import even_parts, pad_reduction
from jitney.loops.points import likely_points, place_among, points_of
from jitney.loops.target import Target
from jitney.loops.visit import Renaming, apart, bound_names, loads, reads, used_names, writes

#: Elements below which more kernels cost more than they save.
WORTH = 1 << 16
#: Parallel points one program of a column reduction handles.
COLUMNS = 64
#: Elements up to which one program reads a contiguous row sooner than a second kernel starts.
SHORT_ROW = 1 << 14
#: Elements of columns up to which programs of a few whole columns each are enough.
SHORT_COLUMN = 1 << 10
#: Elements of a row that a program reduces at least; programs wanted on each multiprocessor.
LEAST, PROGRAMS = 256, 4
#: Most chunks of a row: their results are combined by one program.
MOST = 1024

_SPLITTABLE = frozenset({"sum", "prod", "max", "min", "any", "all", "xor", "welford", *POSITIONAL})


def split_reduction(program: LoopProgram, target: Target) -> LoopProgram:
    """``program`` with long, narrow reductions split for ``target``'s multiprocessors."""
    nodes: list[Node] = []
    made: list[Buffer] = []
    for node in program.nodes:
        wanted = chunks_wanted(node, target) if isinstance(node, LoopNest) else 0
        if isinstance(node, LoopNest) and wanted > 1:
            split = _Split(pad_reduction(node, wanted), wanted)
            device = program.buffer(reads(node)[0]).device
            nodes += split.nests()
            made += [replace(buffer, device=device) for buffer in split.buffers.values()]
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes), buffers=program.buffers + tuple(made))


def can_split(nest: LoopNest) -> Decision:
    """Whether the nest's reductions combine, and its statements can run as nests in turn."""
    rows = [s for s in nest.body if isinstance(s, Reduce | Loop)]
    if not any(isinstance(s, Reduce) for s in rows):
        return no("it reduces nothing")
    if any(not isinstance(s, Let | Store) for row in rows for s in row.body):
        return no("it has loops inside loops")
    if any(r.op not in _SPLITTABLE for s in rows if isinstance(s, Reduce) for r in s.results):
        return no("its results do not combine")
    if not reads(nest):
        return no("it reads nothing")
    return yes("its reductions combine")


def chunks_wanted(nest: LoopNest, target: Target) -> int:
    """Into how many chunks a row should fall to fill the GPU; 0 if it cannot or need not."""
    if not can_split(nest):
        return 0
    points = likely_points(nest.axes)
    length = max(likely_points(s.axes) for s in nest.body if isinstance(s, Reduce))
    rows = _reads_rows(nest)
    if length <= (SHORT_ROW if rows else SHORT_COLUMN if points >= COLUMNS else 0):
        return 0
    programs = max(1, points if rows else points // COLUMNS)
    if points * length < WORTH or programs >= target.multiprocessors:
        return 0
    return min(PROGRAMS * target.multiprocessors // programs, length // LEAST, MOST)


def _reads_rows(nest: LoopNest) -> bool:
    """Whether what a reduction reads is mostly contiguous along its row, not across rows."""
    votes = 0
    for reduce in (s for s in nest.body if isinstance(s, Reduce) and s.axes):
        for load in loads((reduce,)):
            votes += load.index.coefficient(reduce.axes[-1]) == index(1)
            votes -= bool(nest.axes) and load.index.coefficient(nest.axes[-1]) == index(1)
    return votes > 0


@dataclass(frozen=True)
class _Chunks:
    """A reduction's axes in two, ``outer`` counting the chunks; ``moved`` maps the one cut."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    moved: dict[Axis, Index]


def _cut(axes: tuple[Axis, ...], wanted: int) -> _Chunks:
    """Even chunks, at most ``wanted``: leading axes whole, and the next by its best divisor."""
    position = 0
    while position < len(axes) - 1 and _at_most(wanted, axes[position]):
        wanted //= int(axes[position].extent)
        position += 1
    axis = axes[position]
    parts = even_parts(int(axis.extent), wanted) if axis.extent.is_const else 1
    if parts == 1:
        return _Chunks(axes[:position], axes[position:], {})
    high = Axis(axis.name + "_chunk", index(parts))
    low = Axis(axis.name + "_inner", axis.extent // parts)
    moved = {axis: index(high) * low.extent + low}
    return _Chunks((*axes[:position], high), (low, *axes[position + 1 :]), moved)


def _at_most(wanted: int, axis: Axis) -> bool:
    return axis.extent.is_const and int(axis.extent) <= wanted


class _Split:
    """Deals one nest's statements out over several; used for one nest and thrown away."""

    def __init__(self, nest: LoopNest, wanted: int) -> None:
        self.nest, self.wanted = nest, wanted
        self.place, self.points = place_among(nest.axes), points_of(nest.axes)
        self.buffers: dict[str, Buffer] = {}
        self.free: dict[str, Let] = {}
        self.blocks: list[tuple[tuple[Axis, ...], list[Stmt]]] = [(nest.axes, [])]

    def nests(self) -> list[LoopNest]:
        """The nests, in the order they must run."""
        for stmt in self.nest.body:
            if isinstance(stmt, Let) and self._is_free(stmt):
                self.free[stmt.name] = stmt
            elif isinstance(stmt, Reduce):
                self._reduce(stmt)
            elif isinstance(stmt, Loop) and likely_points(self.nest.axes + stmt.axes) >= WORTH:
                self.blocks.append(((*self.nest.axes, *stmt.axes), list(stmt.body)))
                self.blocks.append((self.nest.axes, []))
            else:
                self.blocks[-1][1].append(stmt)
        self.blocks = [block for block in self.blocks if block[1]]
        self._hand_over()
        names = [f"{self.nest.name}_part{n}" for n in range(len(self.blocks) - 1)]
        named = zip((*names, self.nest.name), self.blocks, strict=True)
        return [LoopNest(n, axes, tuple(body), self.nest.origins) for n, (axes, body) in named]

    def _is_free(self, stmt: Let) -> bool:
        """Whether every nest may compute the value again: nothing it needs is made here."""
        written = {e.buffer for e in loads((stmt,))} & set(writes(self.nest))
        return used_names((stmt,)) <= self.free.keys() and not written

    # ------------------------------------------------------------ reductions

    def _reduce(self, stmt: Reduce) -> None:
        wanted = min(self.wanted, likely_points(stmt.axes) // LEAST)
        chunks = _cut(stmt.axes, wanted)
        count = int(points_of(chunks.outer))
        if count <= 1:
            self.blocks[-1][1].append(stmt)
            return
        renaming = Renaming(dict(chunks.moved))
        place = place_among(chunks.outer) * self.points + self.place
        results, stores = [], []
        for result in stmt.results:
            parts = tuple(name + "_part" for name in result.names)
            value, dtype = renaming.expr(result.value), result.dtype
            results.append(Reduction(parts, result.op, value, dtype))
            if result.op in POSITIONAL:  # where it is does not tell how large it is
                best, kind = parts[0] + "_best", value.dtype
                results.append(Reduction((best,), POSITIONAL[result.op], value, kind))
                stores.append(Store(self._buffer(best, kind, count), place, Ref(best, kind)))
            for part in parts[:2]:  # a welford's third is the chunk's length
                stores.append(Store(self._buffer(part, dtype, count), place, Ref(part, dtype)))
        partial = Reduce(chunks.inner, renaming.block(stmt.body), tuple(results))
        at = len(self.blocks)
        if _independent(self.blocks[-1][1], stmt):
            at -= 1  # what comes before can wait, and share a nest with what comes after
        else:
            self.blocks.append((self.nest.axes, []))
        self.blocks.insert(at, ((*chunks.outer, *self.nest.axes), [partial, *stores]))
        self.blocks[-1][1].extend(_combined(stmt, chunks, self))

    def _buffer(self, name: str, dtype: torch.dtype, rows: int = 1) -> str:
        """A temporary of ``rows`` numbers for each point of the nest."""
        full = f"{self.nest.name}_{name}"
        shape, strides = (index(rows), self.points), (self.points, index(1))
        self.buffers[full] = Buffer(full, "temp", dtype, torch.device("cpu"), shape, strides)
        return full

    def partial(self, name: str, dtype: torch.dtype, chunk: Axis | Value) -> Load:
        """The partial result of one chunk."""
        place = index(chunk) * self.points + self.place
        return Load(f"{self.nest.name}_{name}", place, dtype)

    # ------------------------------------------------------------ values from nest to nest

    def _hand_over(self) -> None:
        """Gives every block what it uses of earlier ones: loaded, or computed again."""
        home = {}
        for _, body in self.blocks:
            for name, dtype in _bound(body):
                home[name] = (body, dtype)
        for _, body in self.blocks:
            before: dict[str, Let] = {}
            self._need(used_names(tuple(body)) - set(bound_names(body)), home, before)
            body[:0] = before.values()

    def _need(
        self,
        names: set[str],
        home: dict[str, tuple[list[Stmt], torch.dtype]],
        before: dict[str, Let],
    ) -> None:
        for name in sorted(names - before.keys()):
            if name in self.free:
                self._need(used_names((self.free[name],)), home, before)
                before[name] = self.free[name]
                continue
            body, dtype = home[name]
            buffer = f"{self.nest.name}_{name}"
            if buffer not in self.buffers:
                body.append(Store(self._buffer(name, dtype), self.place, Ref(name, dtype)))
            before[name] = Let(name, Load(buffer, self.place, dtype))


def _independent(before: list[Stmt], stmt: Reduce) -> bool:
    """Whether ``stmt`` may run ahead of the statements before it."""
    needs = used_names((stmt,)) & set(bound_names(before))
    return not needs and apart(tuple(before), (stmt,))


def _bound(body: list[Stmt]) -> list[tuple[str, torch.dtype]]:
    """Names bound by the block's own statements."""
    found = [(s.name, s.value.dtype) for s in body if isinstance(s, Let)]
    results = [r for s in body if isinstance(s, Reduce) for r in s.results]
    return found + [(name, r.dtype) for r in results for name in r.names]


def _combined(stmt: Reduce, chunks: _Chunks, split: _Split) -> list[Stmt]:
    """Statements that bind the names of ``stmt`` from the partial results of its chunks.

    Moments of equally long chunks combine as Chan, Golub and LeVeque (1979) have it: the mean of
    the means, then the sum of squares within the chunks and between them.
    """
    results: list[Reduction] = []
    within: list[Reduction] = []
    lets: list[Stmt] = []
    after: list[Stmt] = []
    chunk = Axis("chunk", points_of(chunks.outer))
    for r in stmt.results:
        if r.op in POSITIONAL:
            results.append(_best_chunk(r, chunk, split))
            after.append(_position(r, chunks, split))
            continue
        first = split.partial(f"{r.names[0]}_part", r.dtype, chunk)
        if r.op != "welford":
            results.append(Reduction(r.names, r.op, first, r.dtype))
            continue
        mean, squares, count = r.names
        results.append(Reduction((mean + "_sum",), "sum", first, r.dtype))
        chunked = _float_count(chunks.outer, r.dtype)
        average = Op("div", (Ref(mean + "_sum", r.dtype), chunked), r.dtype)
        lets += [Let(mean, average), Let(count, _float_count(stmt.axes, r.dtype))]
        away = Op("square", (Op("sub", (first, Ref(mean, r.dtype)), r.dtype),), r.dtype)
        between = Op("mul", (_float_count(chunks.inner, r.dtype), away), r.dtype)
        inside = split.partial(f"{squares}_part", r.dtype, chunk)
        within.append(Reduction((squares,), "sum", Op("add", (inside, between), r.dtype), r.dtype))
    body: list[Stmt] = [Reduce((chunk,), (), tuple(results)), *lets, *after]
    return [*body, Reduce((chunk,), (), tuple(within))] if within else body


def _best_chunk(result: Reduction, chunk: Axis, split: _Split) -> Reduction:
    """Which chunk has the greatest (or least) value, the first of several."""
    name = result.names[0]
    best = split.partial(f"{name}_part_best", result.value.dtype, chunk)
    return Reduction((f"{name}_chunk",), result.op, best, result.dtype)


def _position(result: Reduction, chunks: _Chunks, split: _Split) -> Let:
    """Where in the whole that value stands: chunks are counted by the leading axes."""
    name, dtype = result.names[0], result.dtype
    within = split.partial(f"{name}_part", dtype, Value(f"{name}_chunk"))
    before = Op("mul", (Ref(f"{name}_chunk", dtype), _count(chunks.inner, dtype)), dtype)
    return Let(name, Op("add", (before, within), dtype))


def _float_count(axes: tuple[Axis, ...], dtype: torch.dtype) -> Expr:
    """The points of ``axes`` among floats of ``dtype``."""
    points = points_of(axes)
    if points.is_const:
        return Const(float(int(points)), dtype)
    return Op("cast", (IndexValue(points, torch.int64),), dtype)


def _count(axes: tuple[Axis, ...], dtype: torch.dtype) -> IndexValue:
    return IndexValue(points_of(axes), dtype)
