"""Products with a vector whose programs do several blocks of rows in turn.

What all rows share (the vector, with the norm before it) is made once and stays in registers;
while one block of rows is multiplied, the next is under way.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from jitney.kernels.triton.emit_tile import NONE, Depends
from jitney.kernels.triton.kernel_source import RELEASE, WAIT
from jitney.kernels.triton.schedule_nest import power_of_two
from jitney.kernels.triton.stream_rows import StreamEmitter
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Expr, IndexValue, Let, Load, Op, Reduce, Ref, Stmt
from jitney.loops.points import points_of
from jitney.loops.simplify_nest import indices
from jitney.loops.visit import loads, stores


class TurnEmitter(StreamEmitter):
    """A stream emitter that can also go over blocks of rows in turn."""

    along: str

    @abstractmethod
    def _row_text(self, width: int) -> str:
        """Positions along a row's tile."""

    @abstractmethod
    def _unflatten(self, name: str, axes: tuple[Axis, ...], on: Depends) -> None:
        """Names each axis's value, made of the flat index ``name``."""

    def _turned(self) -> Reduce | None:
        """The reduction to take in turns: the last loop of the nest, a stream, after loops that
        do not depend on the row."""
        loops = [s for s in self.nest.body if isinstance(s, Reduce)]
        if self.schedule.turns < 2 or not loops or len(loops[-1].axes) != 1:
            return None
        if not all(isinstance(s, Let) for s in loops[-1].body):
            return None
        stmt, at = loops[-1], self.nest.body.index(loops[-1])
        fixed = all(a.extent.is_const for a in (*self.nest.axes, *stmt.axes))
        if not fixed or any(r.op != "sum" for r in stmt.results):
            return None
        before = self.nest.body[:at]
        if any(self._varies_with_rows(s) for s in before) or not self._weights(stmt):
            return None
        return stmt

    def _emit_turns(self, stmt: Reduce) -> tuple[Index, ...]:
        """The whole kernel; its grid."""
        axis, (turns, block) = stmt.axes[0], (self.schedule.turns, self.schedule.x_block)
        width = power_of_two(int(axis.extent))
        rows = int(points_of(self.nest.axes))
        at = self.nest.body.index(stmt)
        loads = self._weights(stmt)
        self.sizes["r"] = width
        self._line(RELEASE)
        self.along = self._bind(self._row_text(width), frozenset("r"))[0]
        tiles = [self._name("w") for _ in loads]
        self._load_rows(tiles, loads, axis, "tl.program_id(0) * " + str(turns), "")
        self._bind_row(axis, width)
        self._load_fixed(stmt)
        self._line(WAIT)
        self.schedule = replace(self.schedule, row_limit=width)  # the norm's row is a tile as well
        self._statements(self.nest.body[:at])
        self._bind_row(axis, width)
        own = self._hoist_shared(stmt)
        self._line(f"for turn in range(0, {turns}):")
        self.indent += 1
        self.memo.append({})
        current = [self._name("w") for _ in loads]
        for name, tile in zip(current, tiles, strict=True):
            self._line(f"{name} = {tile}")
        first = f"(tl.program_id(0) * {turns} + turn)"
        self._load_rows(tiles, loads, axis, f"({first} + 1)", f"turn + 1 < {turns}")
        self._bind_rows(first, rows, rows % (block * turns) != 0)
        self._bind_row(axis, width)
        for load, name in zip(loads, current, strict=True):
            self.given[load] = (name, frozenset(("x", "r")))
        self._statements(own)
        for result in stmt.results:
            self._reduce_tile(result)
        self.masks.pop("r", None)
        self.given.clear()
        self._statements(self.nest.body[at + 1 :])
        return (index(-(-rows // (block * turns))),)

    def _load_rows(
        self, names: list[str], loads: list[Load], axis: Axis, block: str, also: str
    ) -> None:
        """Asks for the weights of a block of rows; nothing where ``also`` does not hold."""
        rows, width = int(points_of(self.nest.axes)), int(axis.extent)
        self.memo.append({})
        ragged = rows % (self.schedule.x_block * self.schedule.turns) != 0
        self._bind_rows(block, rows, ragged)
        self.atoms[axis], self.depends[axis] = self.along, frozenset("r")
        masks = [f"({also})"] * bool(also) + ["xmask"] * ragged
        if width != power_of_two(width):
            masks.append(f"({self.along} < {width})")
        for name, load in zip(names, loads, strict=True):
            where, on = self._index(load.index)
            pointer = self._spread(
                self._address(load.buffer, load.dtype, where, on), on, frozenset(("x", "r"))
            )
            mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
            self._line(f"{name} = tl.load({pointer}{mask})")
        self.memo.pop()

    def _bind_rows(self, block: str, rows: int, ragged: bool) -> None:
        size = self.schedule.x_block
        block = f"({block}).to(tl.int64)" if self.wide else f"({block})"
        self._line(f"x = {block} * {size} + tl.arange(0, {size}){self._expand('x')}")
        if ragged:
            self._line(f"xmask = x < {rows}")
            self.masks["x"] = "xmask"
        self._unflatten("x", self.nest.axes, frozenset("x"))

    def _bind_row(self, axis: Axis, width: int) -> None:
        self.row_name, self.sizes["r"] = self.along, width
        self.atoms[axis], self.depends[axis] = self._bind(self.along, frozenset("r"))
        if int(axis.extent) != width:
            self.masks["r"] = self._bind(f"{self.along} < {int(axis.extent)}", frozenset("r"))[0]

    def _load_fixed(self, stmt: Reduce) -> None:
        """Loads what the vector is multiplied with (a norm's weight): no earlier kernel's work."""
        for load in loads((stmt,)):
            if load.buffer in self.fixed and load.mask is None:
                if set(load.index.atoms()) == set(stmt.axes):
                    self._expr(load)

    def _hoist_shared(self, stmt: Reduce) -> tuple[Stmt, ...]:
        """Computes what all rows share; the statements of the reduction that are left."""
        own: list[Stmt] = []
        for let in stmt.body:
            assert isinstance(let, Let)
            if self._depends_on_rows(let.value):
                self._hoist(let.value)
                own.append(let)
                self.refs[let.name] = ("", frozenset(("x", "r")))  # until its turn
                self._name_value(let.name)
            else:
                self._let(let)
        for result in stmt.results:
            self._hoist(result.value)
        return tuple(own)

    def _hoist(self, expr: Expr) -> None:
        """Computes what does not depend on the row before the loop over rows."""
        if not self._depends_on_rows(expr):
            self._expr(expr)
        elif isinstance(expr, Op):
            for arg in expr.args:
                self._hoist(arg)

    def _depends_on_rows(self, expr: Expr) -> bool:
        if isinstance(expr, Ref):
            return "x" in self.refs[expr.name][1]
        if isinstance(expr, Load | IndexValue):
            mask = expr.mask if isinstance(expr, Load) else None
            own = any(self._atom_on_rows(a) for a in expr.index.atoms())
            return own or (mask is not None and self._depends_on_rows(mask))
        return isinstance(expr, Op) and any(self._depends_on_rows(a) for a in expr.args)

    def _atom_on_rows(self, atom: object) -> bool:
        if isinstance(atom, Axis):
            return atom in self.nest.axes
        return "x" in self.depends.get(atom, NONE)  # type: ignore[call-overload]

    def _varies_with_rows(self, stmt: Stmt) -> bool:
        """Whether a statement names a parallel axis anywhere."""
        if stores((stmt,)):
            return True
        axes = set(self.nest.axes)
        return any(axes & set(where.atoms()) for where in indices((stmt,)))
