"""Sums over rows are computed inside a nest that goes over the same rows anyway.

The gradient of a bias sums what a kernel has just written; those of a layer norm's two parameters
sum what the gradient of its input reads. Such a sum joins that nest, the *host*, which then walks:
each program goes over a chunk of rows in turn and keeps a partial sum of every column. A small nest
adds up the partial sums of all chunks. A pointwise host is first given rows, cut into blocks of
columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import (
    Buffer,
    Expr,
    Load,
    Loop,
    LoopNest,
    LoopProgram,
    Node,
    Reduce,
    Stmt,
    Store,
)
from jitney.loops.split_reduction import chunks_wanted
from jitney.loops.target import Target
from jitney.loops.visit import (
    Renaming,
    bound_names,
    expr_loads,
    inner_axes,
    loads,
    map_expr,
    map_stmt,
    reads,
    rename_axes,
    stores,
    used_names,
    writes,
)

#: Elements of rows below which reading them again is cheaper than a walk.
WORTH = 1 << 20
#: Columns a walking program holds at most; of a pointwise host it takes at most, and at least.
WIDEST, BLOCK, NARROWEST = 4096, 1024, 128
#: Programs wanted on each multiprocessor; rows a program walks at least.
PROGRAMS, LEAST = 8, 8
#: Nodes between a sum and its host at most.
NEAR = 12


def join_column_sums(program: LoopProgram, target: Target) -> LoopProgram:
    """``program`` with sums over rows made by the nests that make or read the rows."""
    joining = _Joining(program, target)
    for at, node in enumerate(program.nodes):
        found = _column_sum(node, target)
        if found is not None:
            joining.try_hosts(at, found)
    nodes = tuple(node for several in joining.nodes for node in several)
    return replace(program, nodes=nodes, buffers=program.buffers + tuple(joining.buffers))


@dataclass(frozen=True)
class _ColumnSum:
    """A nest over one axis, ``column``, whose only loop, ``reduce``, sums over ``row``."""

    nest: LoopNest
    reduce: Reduce
    column: Axis
    row: Axis

    def moved(self, walk: _Walk) -> Renaming:
        """Its axes as the walk counts them, its names unlike any of the walk's."""
        names = {n: f"{n}_of_{self.nest.name}" for n in bound_names(self.reduce.body)}
        return Renaming({self.column: walk.column, self.row: walk.row}, names)


@dataclass(frozen=True)
class _Walk:
    """A host over ``chunk``, (blocks of columns,) and steps within the chunk, with its row and
    column in these axes; ``loop``: where in its body the columns are looped over last."""

    nest: LoopNest
    chunk: Axis
    row: Index
    column: Index
    loop: int

    @property
    def columns(self) -> Loop:
        """The loop that sums join."""
        found = self.nest.body[self.loop]
        assert isinstance(found, Loop)
        return found

    def with_sums(self, body: tuple[Stmt, ...]) -> _Walk:
        """The walk with another body of its loop over columns."""
        whole = list(self.nest.body)
        whole[self.loop] = replace(self.columns, body=body)
        return replace(self, nest=replace(self.nest, body=tuple(whole)))


def _column_sum(node: Node, target: Target) -> _ColumnSum | None:
    if not isinstance(node, LoopNest) or len(node.axes) != 1 or chunks_wanted(node, target) < 2:
        return None
    loops = [s for s in node.body if isinstance(s, Reduce | Loop)]
    reduce = loops[0]
    if len(loops) != 1 or not isinstance(reduce, Reduce) or len(reduce.axes) != 1:
        return None
    before = set(bound_names(node.body)) - set(bound_names((reduce,)))
    plain = all(r.op == "sum" for r in reduce.results) and not stores(reduce.body)
    if not plain or used_names((reduce,)) & before:
        return None
    if not all(a.extent.is_const for a in (*node.axes, *reduce.axes)):
        return None
    found = _ColumnSum(node, reduce, node.axes[0], reduce.axes[0])
    return found if int(found.column.extent) * int(found.row.extent) >= WORTH else None


def as_walk(host: LoopNest, rows: int, columns: int, target: Target) -> _Walk | None:
    """``host`` as a walk over ``rows`` x ``columns``; None if it does not go over them so."""
    if not all(a.extent.is_const for a in (*host.axes, *inner_axes(host.body))):
        return None
    if any(isinstance(s, Loop | Reduce) for s in host.body):
        return _walk_of_rows(host, rows, columns, target)
    return _walk_of_points(host, rows, columns, target)


def _walk_of_rows(host: LoopNest, rows: int, columns: int, target: Target) -> _Walk | None:
    loops = [s for s in host.body if isinstance(s, Loop | Reduce)]
    if [int(a.extent) for a in host.axes] != [rows] or columns > WIDEST:
        return None
    if any([int(a.extent) for a in s.axes] != [columns] or inner_axes(s.body) for s in loops):
        return None
    at = [i for i, s in enumerate(host.body) if isinstance(s, Loop)]
    cut = _chunks(rows, PROGRAMS * target.multiprocessors, target)
    if not at or cut is None:
        return None
    chunk, step = cut
    column, row = Axis("column", index(columns)), index(chunk) * step.extent + step
    inner = dict.fromkeys(inner_axes(host.body), column)
    body = rename_axes(host.body, {host.axes[0]: row}, inner)
    return _Walk(replace(host, axes=(chunk, step), body=body), chunk, row, index(column), at[-1])


def _walk_of_points(host: LoopNest, rows: int, columns: int, target: Target) -> _Walk | None:
    extents = [int(a.extent) for a in host.axes]
    width = max(w for w in (1 << n for n in range(BLOCK.bit_length())) if columns % w == 0)
    if extents not in ([rows * columns], [rows, columns]) or width < NARROWEST:
        return None
    blocks = columns // width
    cut = _chunks(rows, 2 * PROGRAMS * target.multiprocessors // blocks, target)
    if cut is None:
        return None
    (chunk, step), inside = cut, Axis("column", index(width))
    block = Axis("block", index(blocks))
    row, column = index(chunk) * step.extent + step, index(block) * width + inside
    places = [row * columns + column] if len(extents) == 1 else [row, column]
    body = rename_axes(host.body, dict(zip(host.axes, places, strict=True)), {})
    nest = replace(host, axes=(chunk, block, step), body=(Loop((inside,), body),))
    return _Walk(nest, chunk, row, column, 0)


def _chunks(rows: int, wanted: int, target: Target) -> tuple[Axis, Axis] | None:
    """Chunks and the rows of one, evenly; None where that leaves too few of either."""
    count = max(n for n in range(1, max(1, min(wanted, rows // LEAST)) + 1) if rows % n == 0)
    if count < min(wanted, target.multiprocessors) // 2:
        return None
    return Axis("chunk", index(count)), Axis("step", index(rows // count))


class _Joining:
    """A program under way: at each place its nodes, and what they read and write."""

    def __init__(self, program: LoopProgram, target: Target) -> None:
        self.program, self.target = program, target
        self.nodes: list[list[Node]] = [[node] for node in program.nodes]
        self.reads = [set(reads(node)) for node in program.nodes]
        self.writes = [set(writes(node)) for node in program.nodes]
        self.walks: dict[int, _Walk] = {}
        self.buffers: list[Buffer] = []

    def try_hosts(self, at: int, found: _ColumnSum) -> None:
        """Joins the sum at this place to the nearest host that may take it."""
        near = range(max(0, at - NEAR), min(len(self.nodes), at + NEAR + 1))
        for place in sorted(set(near) - {at}, key=lambda p: abs(p - at)):
            walk = self._walk(place, found)
            if walk is not None and self._may_move(at, place, walk, found):
                if _shares_reads(walk, found):
                    self._join(at, place, walk, found)
                    return

    def _walk(self, place: int, found: _ColumnSum) -> _Walk | None:
        host = self.nodes[place][0] if self.nodes[place] else None
        if not isinstance(host, LoopNest):
            return None
        rows, columns = int(found.row.extent), int(found.column.extent)
        known = self.walks.get(place)
        if known is None:
            return as_walk(host, rows, columns, self.target)
        return known if _spans(known) == (rows, columns) else None

    def _may_move(self, at: int, place: int, walk: _Walk, found: _ColumnSum) -> Decision:
        """Whether the rows hold at the host what they hold at the sum, and nobody between them
        needs the sum's results earlier."""
        between = range(min(at, place) + 1, max(at, place))
        read, written = set(reads(found.nest)), set(writes(found.nest))
        if any(self.writes[k] & read for k in between):
            return no("what it reads changes in between")
        made = {s.buffer for s in _made_before(walk).values()} if place < at else set()
        if self.writes[place] & (read - made):
            return no("the host writes what it reads")
        if place > at and any(
            (self.reads[k] | self.writes[k]) & written for k in (*between, place)
        ):
            return no("its results are wanted before the host")
        return yes("nothing in between touches it")

    def _join(self, at: int, place: int, walk: _Walk, found: _ColumnSum) -> None:
        device = self.program.buffer(reads(found.nest)[0]).device
        walk, whole, made = _joined(walk, found, device, place < at)
        self.walks[place] = walk
        self.nodes[place][0] = walk.nest
        self.buffers += made
        self.reads[place] |= set(reads(found.nest)) - self.writes[place]
        if place < at:
            self.nodes[at] = [whole]
        else:
            self.nodes[at] = []
            self.reads[at], self.writes[at] = set(), set()
            self.nodes[place].append(whole)
            self.writes[place] |= set(writes(whole))


def _spans(walk: _Walk) -> tuple[int, int]:
    """Rows and columns of a walk."""
    rows = int(walk.chunk.extent) * int(walk.nest.axes[-1].extent)
    blocks = [int(a.extent) for a in walk.nest.axes[1:-1]]
    return rows, int(walk.columns.axes[0].extent) * (blocks[0] if blocks else 1)


def _made_before(walk: _Walk) -> dict[tuple[str, Index], Store]:
    """What the loop over columns stores, by place, each once and always, and of values that can
    still be computed at its end."""
    made = [s for s in stores(walk.columns.body) if s.mode == "set" and s.mask is None]
    every = [s.buffer for s in stores(walk.nest.body)]
    lasting = [s for s in made if not {x.buffer for x in expr_loads([s.value])} & set(every)]
    return {(s.buffer, s.index): s for s in lasting if every.count(s.buffer) == 1}


def _shares_reads(walk: _Walk, found: _ColumnSum) -> Decision:
    """Whether the host reads or makes all that the sum reads of every row and column."""
    moved, changed = found.moved(walk), set(writes(walk.nest))
    known = {(x.buffer, x.index) for x in loads(walk.nest.body) if x.buffer not in changed}
    known |= set(_made_before(walk))
    both = {found.row, found.column}
    every = loads((found.reduce,))
    wanted = [x for x in every if x.buffer in changed or both <= x.index.atoms()]
    if not wanted:
        return no("it reads no rows")
    if any((x.buffer, moved.index(x.index)) not in known for x in wanted):
        return no("the host does not read it all")
    return yes("all it reads passes through the host")


def _joined(
    walk: _Walk, found: _ColumnSum, device: torch.device, after: bool
) -> tuple[_Walk, LoopNest, list[Buffer]]:
    """The walk that also sums, the nest that adds up its partial sums, and their buffers.
    ``after``: the sum reads what the host has stored."""
    moved, made = found.moved(walk), _made_before(walk) if after else {}

    def stored(expr: Expr) -> Expr:
        store = made.get((expr.buffer, expr.index)) if isinstance(expr, Load) else None
        return expr if store is None else store.value

    memo: dict[int, Expr] = {}
    body = [map_stmt(s, stored, memo) for s in moved.block(found.reduce.body)]
    count, width = walk.chunk.extent, found.column.extent
    chunk = Axis(walk.chunk.name, count)
    buffers, partial = [], []
    for result in found.reduce.results:
        name = f"{found.nest.name}_{result.names[0]}_walked"
        buffers.append(
            Buffer(name, "temp", result.dtype, device, (count, width), (width, index(1)))
        )
        value = map_expr(moved.expr(result.value), stored, memo)
        body.append(Store(name, index(walk.chunk) * width + walk.column, value, mode="sum"))
        load = Load(name, index(chunk) * width + found.column, result.dtype)
        partial.append(replace(result, value=load))
    whole = Reduce((chunk,), (), tuple(partial))
    rest = tuple(whole if s is found.reduce else s for s in found.nest.body)
    walk = walk.with_sums((*walk.columns.body, *body))
    return walk, replace(found.nest, body=rest), buffers
