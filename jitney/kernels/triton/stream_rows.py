"""Products with a vector: loads of the weights are issued before the vector is known.

No earlier kernel computes the weights. So a program loads its first tiles of them, then waits for
the launch before it, and from then on loads each tile some turns before it is used.
"""

from __future__ import annotations

from abc import abstractmethod

from jitney.kernels.triton.emit_reductions import ReductionEmitter
from jitney.kernels.triton.emit_tile import Depends
from jitney.kernels.triton.schedule_nest import Schedule
from jitney.loops.index import Axis
from jitney.loops.ir import Load, LoopNest, Reduce, Stmt
from jitney.loops.visit import body_exprs


class StreamEmitter(ReductionEmitter):
    """A reduction emitter that knows which buffers are ``fixed`` while the program runs."""

    nest: LoopNest
    schedule: Schedule
    fixed: frozenset[str]
    streamed: Reduce | None = None
    wide: bool

    @abstractmethod
    def _statements(self, body: tuple[Stmt, ...]) -> None:
        """Emits the statements of a block."""

    def _is_stream(self, stmt: Reduce) -> bool:
        """Whether the reduction reads a fixed buffer along its only axis, in a loop of tiles."""
        if self.schedule.ahead < 1 or len(stmt.axes) != 1:
            return False
        extent = stmt.axes[0].extent
        if not extent.is_const or int(extent) <= self.schedule.row_limit:
            return False
        return all(r.op == "sum" for r in stmt.results) and bool(self._weights(stmt))

    def _weights(self, stmt: Reduce) -> list[Load]:
        known = {*self.nest.axes, *stmt.axes}
        found: dict[Load, None] = {}
        for expr in body_exprs((stmt,)):
            if isinstance(expr, Load) and expr.buffer in self.fixed and expr.mask is None:
                atoms = set(expr.index.atoms())
                if atoms <= known and stmt.axes[0] in atoms and len(atoms) > 1:
                    found[expr] = None
        return list(found)

    def _begin_stream(self, stmt: Reduce) -> None:
        """Loads the first tiles of every weight."""
        self.streamed = stmt
        axis, block = stmt.axes[0], self.schedule.r_block
        turns = -(-int(axis.extent) // block)
        self.ahead = min(self.schedule.ahead, turns)
        self.tiles: list[list[str]] = []
        wide = ".to(tl.int64)" if self.wide else ""
        self._line(f"ahead = tl.arange(0, {block}){self._expand('r')}{wide}")
        for load in self._weights(stmt):
            self.tiles.append([self._name("w") for _ in range(self.ahead)])
            for turn, name in enumerate(self.tiles[-1]):
                self._line(f"{name} = {self._tile_load(load, axis, str(turn * block), turn)}")

    def _tile_load(self, load: Load, axis: Axis, start: str, turn: int | None) -> str:
        """The tile of ``load`` from position ``start`` of the row (``turn``: of which it is
        known which one it is), nothing where that is past the end."""
        row, block = int(axis.extent), self.schedule.r_block
        self.atoms[axis], self.depends[axis] = f"({start} + ahead)", frozenset("r")
        where, on = self._index(load.index)
        pointer = self._address(load.buffer, load.dtype, where, on)
        masks = [self.masks[d] for d in ("y", "x") if d in on and d in self.masks]
        if turn is None or (turn + 1) * block > row:
            masks.append(f"({start} + ahead < {row})")
        if not masks:
            return f"tl.load({pointer})"
        return f"tl.load({pointer}, mask={' & '.join(masks)}, other=0.0)"

    def _finish_stream(self, stmt: Reduce, varies: Depends) -> None:
        """The loop over tiles: each turn asks for the tile ``ahead`` turns later."""
        axis, block = stmt.axes[0], self.schedule.r_block
        row, loads = int(axis.extent), self._weights(stmt)
        self.sizes["r"] = block
        partials = [self._accumulators(r, varies) for r in stmt.results]
        turns = -(-row // block)
        unrolled = self.ahead == turns
        for turn in range(turns if unrolled else 1):
            start = str(turn * block)
            if not unrolled:
                start = "r_start"
                self._line(f"for r_start in range(0, {row}, {block}):")
                self.indent += 1
            self.memo.append({})
            self._turn(stmt, loads, start, turn if unrolled else None)
            self.inside_rows = True
            self._statements(stmt.body)
            self.inside_rows = False
            for result, names in zip(stmt.results, partials, strict=True):
                self._accumulate(result, names)
            self.memo.pop()
            self.indent -= not unrolled
        self.masks.pop("r", None)
        self.given.clear()
        for result, names in zip(stmt.results, partials, strict=True):
            self._finish(result, names, varies)

    def _turn(self, stmt: Reduce, loads: list[Load], start: str, turn: int | None) -> None:
        """Binds the row's axis to this turn's positions, and the weights to their tiles."""
        axis, block = stmt.axes[0], self.schedule.r_block
        for load, tiles in zip(loads, self.tiles, strict=True):
            current = tiles[turn] if turn is not None else self._name("w")
            if turn is None:
                self._line(f"{current} = {tiles[0]}")
                for to, of in zip(tiles, tiles[1:], strict=False):
                    self._line(f"{to} = {of}")
                ahead = f"(r_start + {self.ahead * block})"
                self._line(f"{tiles[-1]} = {self._tile_load(load, axis, ahead, None)}")
            self.given[load] = (current, self._index(load.index)[1])
        name = self._name("r")
        self._line(f"{name} = {start} + ahead")
        self.row_name = name
        self.atoms[axis], self.depends[axis] = name, frozenset("r")
        self.masks.pop("r", None)
        if int(axis.extent) % block:
            mask = f"{name} < {int(axis.extent)}"
            self.masks["r"] = self._bind(mask, frozenset("r"))[0]
