"""A loop nest as the source of one Triton kernel.

The parallel axes are flattened into ``x`` (one tile dimension) unless the schedule gives one of
them a dimension of its own (``y``, for transposes); a reduction or inner loop is the last tile
dimension ``r``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from jitney.errors import CompilerBug
from jitney.kernels.triton.emit_tile import NONE, Depends
from jitney.kernels.triton.expressions import TYPES, ends_in_16_bits
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_nest import Schedule, fits_32_bits, power_of_two, walks
from jitney.kernels.triton.store_early import store_early
from jitney.kernels.triton.walk_rows import WalkEmitter
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import (
    OF_SEVERAL_VALUES,
    IndexValue,
    Let,
    Load,
    Loop,
    LoopNest,
    Reduce,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.points import points_of
from jitney.loops.simplify_nest import indices
from jitney.loops.visit import body_exprs, loads, stores

#: Elements a thread may hold that are not used yet; a quarter of its registers are left.
MOST_AHEAD = 192


def emit_nest(
    nest: LoopNest, schedule: Schedule, fixed: frozenset[str] = frozenset()
) -> KernelSource:
    """The kernel for ``nest``; its parameters are named by position, so that equal nests over
    other buffers give equal source. ``fixed``: buffers no kernel of the program writes."""
    return NestEmitter(nest, schedule, fixed).emit()


class NestEmitter(WalkEmitter):
    """Writes one nest's kernel; used for one nest and thrown away."""

    def __init__(self, nest: LoopNest, schedule: Schedule, fixed: frozenset[str]) -> None:
        has_rows = any(isinstance(s, Reduce | Loop) for s in nest.body)
        dims = ("y",) * (schedule.tile_axis is not None) + ("x",) + ("r",) * has_rows
        sizes = {"x": schedule.x_block, "y": schedule.y_block, "r": schedule.r_block}
        super().__init__(dims, sizes)
        self.nest, self.schedule, self.fixed = nest, schedule, fixed
        self.wide = not all(map(fits_32_bits, (*indices(nest.body), *_counts(nest))))
        self.rough = ends_in_16_bits(nest.body)

    def emit(self) -> KernelSource:
        """The kernel, with the grid and the warps it is launched with."""
        if walks(self.nest):
            grid = self._emit_walk()
        else:
            turned = self._turned()
            grid = self._emit_once() if turned is None else self._emit_turns(turned)
        return self._kernel(self.nest.name, grid, self.schedule.num_warps)

    def _emit_once(self) -> tuple[Index, ...]:
        """The body for one block of points; the grid."""
        grid = self._bind_parallel_axes()
        self._line(RELEASE)
        streams = [s for s in self.nest.body if isinstance(s, Reduce) and self._is_stream(s)]
        if len(streams) == 1:
            self._begin_stream(streams[0])
        self._line(WAIT)
        self._load_ahead()
        self._statements(store_early(self.nest.body))
        return grid

    def _load_ahead(self) -> None:
        """Loads all of a row that registers hold, before anything is reduced or stored: the
        compiler cannot move a load over a store that might write there."""
        rows = [s for s in self.nest.body if isinstance(s, Reduce | Loop)]
        written = {store.buffer for store in stores(self.nest.body)}
        wanted: list[tuple[Reduce | Loop, Load]] = []
        for row in rows:
            if not self._is_whole(row.axes):
                return
            known = {*self.nest.axes, *row.axes}  # not what a loop inside the row counts
            for load in loads((row,)):
                plain = load.mask is None and load.buffer not in written
                if plain and load.index.atoms() <= known:
                    wanted.append((row, load))
        width = max([power_of_two(int(points_of(row.axes))) for row in rows], default=0)
        elements = width * self.schedule.x_block // (32 * self.schedule.num_warps)
        if len({load.buffer for _, load in wanted}) * elements > MOST_AHEAD:
            return
        for row, load in wanted:
            with self._rows(row.axes):
                self._expr(load)

    # ------------------------------------------------------------ axes

    def _bind_parallel_axes(self) -> tuple[Index, ...]:
        """Programs are counted along one dimension of the grid: others end at 65,535."""
        tile, block = self.schedule.tile_axis, self.schedule.x_block
        flat = tuple(a for a in self.nest.axes if a != tile)
        outer, flat = self._whole_tiles(flat)
        total = points_of(flat)
        across = (total + (block - 1)) // block
        programs, program = across * points_of(outer), "tl.program_id(0)"
        if tile is not None:
            down = (tile.extent + (self.schedule.y_block - 1)) // self.schedule.y_block
            self._tile("y", f"({program} // ({self._index(programs)[0]}))", tile.extent)
            self.atoms[tile], self.depends[tile] = "y", frozenset("y")
            program = f"({program} % ({self._index(programs)[0]}))"
            programs = programs * down
        if outer:
            wide = ".to(tl.int64)" if self.wide else ""
            self._line(f"rest = {program}{wide} // ({self._index(across)[0]})")
            self._unflatten("rest", outer, NONE)
            program = f"({program} % ({self._index(across)[0]}))"
        self._tile("x", program, total)
        self._unflatten("x", flat, frozenset("x"))
        return (programs,)

    def _whole_tiles(self, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """Axes in two: those that are one number in a tile, and those that run along it."""
        known = len(axes) > 1 and all(a.extent.is_const for a in axes)
        if known and int(axes[-1].extent) % self.schedule.x_block == 0:
            return axes[:-1], axes[-1:]
        return (), axes

    def _tile(self, dim: str, program: str, total: Index) -> None:
        block = self.sizes[dim]
        start = f"{program}.to(tl.int64)" if self.wide else program
        self._line(f"{dim} = {start} * {block} + tl.arange(0, {block}){self._expand(dim)}")
        if not (total.is_const and total.const % block == 0):
            self._line(f"{dim}mask = {dim} < {self._index(total)[0]}")
            self.masks[dim] = f"{dim}mask"

    def _unflatten(self, name: str, axes: tuple[Axis, ...], on: Depends) -> None:
        if axes:
            self.innermost.update(dict.fromkeys(on, axes[-1]))
        stride = index(1)
        for position, axis in reversed(list(enumerate(axes))):
            text = name
            if stride != index(1):
                text = f"({text} // ({self._index(stride)[0]}))"
            if position and axis.extent != index(1):
                text = f"({text} % ({self._index(axis.extent)[0]}))"
            self.atoms[axis] = "0" if axis.extent == index(1) else self._bind(text, on)[0]
            self.depends[axis] = NONE if axis.extent == index(1) else on
            stride = stride * axis.extent

    # ------------------------------------------------------------ statements

    def _statements(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, Let):
                self._let(stmt)
            elif isinstance(stmt, Store):
                self._store(stmt)
            else:
                self._settle(stmt)
                least = points_of(stmt.axes).bounds()[0]
                with nullcontext() if (least or 0) > 0 else self.order.perhaps():
                    self._inner(stmt)
                self.order.note(stmt)

    def _inner(self, stmt: Loop | Reduce) -> None:
        if self.inside_rows:
            self._one_by_one(stmt)
        elif isinstance(stmt, Reduce):
            self._reduce(stmt)
        else:
            if not self._is_whole(stmt.axes):
                self._begin_running(stmt)
            with self._rows(stmt.axes):
                self._statements(stmt.body)

    def _is_whole(self, axes: tuple[Axis, ...]) -> bool:
        """Whether one tile holds a row of these axes."""
        total = points_of(axes)
        return total.is_const and total.const <= self.schedule.row_limit

    def _one_by_one(self, stmt: Loop | Reduce) -> None:
        """A loop inside a row: there is no tile dimension left, so its points run in turn."""
        partials: list[str] = []
        if isinstance(stmt, Reduce):
            for result in stmt.results:
                if result.op in OF_SEVERAL_VALUES:
                    raise CompilerBug(f"a nested {result.op} reached the Triton backend")
                partials.append(self._name("acc"))
                start = f"{self._identity(result)}, {TYPES[result.value.dtype]}"
                shape = self._shape(frozenset(self.dims))
                self._line(f"{partials[-1]} = tl.full({shape}, {start})")
        for axis in stmt.axes:
            name = self.atoms[axis] = self._name("i")
            self._line(f"for {name} in range(0, {self._end(axis.extent)}):")
            self.depends[axis] = NONE
            self.indent += 1
            if self.wide:
                self.atoms[axis] = self._bind(f"tl.full([], 0, tl.int64) + {name}", NONE)[0]
        self.memo.append({})
        self._statements(stmt.body)
        if isinstance(stmt, Reduce):
            for result, acc in zip(stmt.results, partials, strict=True):
                self._line(f"{acc} = {self._combined(result, acc, self._expr(result.value)[0])}")
        self.memo.pop()
        self.indent -= len(stmt.axes)
        if isinstance(stmt, Reduce):
            for result, acc in zip(stmt.results, partials, strict=True):
                self._bind_results(result.names, (acc,), frozenset(self.dims))

    @contextmanager
    def _rows(self, axes: tuple[Axis, ...]) -> Iterator[None]:
        """Binds inner axes to the ``r`` dimension: one tile, or a loop of tiles."""
        total, whole = points_of(axes), self._is_whole(axes)
        outer_mask = self.masks.pop("r", None)
        block = self._row_tile(total.const) if whole else self.schedule.r_block
        if whole:
            name, _ = self._bind(self._row_text(block), frozenset("r"))
            exact = block == total.const
        else:
            self.fresh += 1
            start, name = f"r{self.fresh}_start", f"r{self.fresh}"
            self._line(f"for {start} in range(0, {self._end(total)}, {block}):")
            self.indent += 1
            self.memo.append({})
            self._line(f"{name} = {start} + {self._row_text(block)}")
            exact = total.is_const and total.const % block == 0
        if not exact:
            text = f"{name} < {self._index(total)[0]}"
            self.masks["r"] = self._bind(text, frozenset("r"))[0]
        self.row_name, self.sizes["r"] = name, block
        self._unflatten(name, axes, frozenset("r"))
        self.inside_rows = True
        yield
        self.inside_rows = False
        if not whole:
            self.memo.pop()
            self.indent -= 1
        self.masks.pop("r", None)
        if outer_mask is not None:
            self.masks["r"] = outer_mask

    def _end(self, total: Index) -> str:
        """Where a loop ends. Triton takes a literal from 2^31 to 2^32 for unsigned, and the loop,
        which compares signed numbers, would not run."""
        if total.is_const and total.const >= 2**31:
            return f"tl.full([], {total.const}, tl.int64)"
        return self._index(total)[0]

    def _row_tile(self, width: int) -> int:
        """Triton 3.6 fails on lone rows of fewer elements than a warp has threads."""
        lone = self.schedule.x_block * self.schedule.y_block == 1
        return max(power_of_two(width), 32 if lone else 1)

    def _row_text(self, width: int) -> str:
        wide = ".to(tl.int64)" if self.wide else ""
        return f"tl.arange(0, {width}){self._expand('r')}{wide}"

    def _reduce(self, stmt: Reduce) -> None:
        if stmt is self.streamed:
            self._finish_stream(stmt, self._varies(stmt))
        elif self._is_whole(stmt.axes):
            with self._rows(stmt.axes):
                self._statements(stmt.body)
                for result in stmt.results:
                    self._reduce_tile(result)
        else:
            varies = self._varies(stmt)
            self.sizes["r"] = self.schedule.r_block
            partials = [self._accumulators(r, varies) for r in stmt.results]
            with self._rows(stmt.axes):
                self._statements(stmt.body)
                for result, names in zip(stmt.results, partials, strict=True):
                    self._accumulate(result, names)
            for result, names in zip(stmt.results, partials, strict=True):
                self._finish(result, names, varies)

    def _varies(self, stmt: Reduce) -> Depends:
        """The tile dimensions the results' partial values need: a row shared by all of ``x``
        (a norm before a matrix product) is reduced once, not once for each point."""
        if any(isinstance(inner, Reduce) for inner in stmt.body):
            return frozenset(self.dims)  # as what is reduced one by one
        inner = dict.fromkeys(stmt.axes, frozenset("r"))
        on = frozenset("r")
        for expr in body_exprs((stmt,)):
            if isinstance(expr, Load | IndexValue):
                for atom in expr.index.atoms():
                    on |= inner.get(atom) or self.depends.get(atom, NONE)  # type: ignore[arg-type]
            elif isinstance(expr, Ref) and expr.name in self.refs:
                on |= self.refs[expr.name][1]
        return on


def _counts(nest: LoopNest) -> list[Index]:
    """How many points are counted, of the nest and of its rows: more than there are places, where
    what is read repeats."""
    rows = [s.axes for s in nest.body if isinstance(s, Reduce | Loop)]
    return [points_of(axes) for axes in (nest.axes, *rows)]
