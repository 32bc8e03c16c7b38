"""Nests whose programs go over a chunk of rows in turn and sum columns along the way."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from jitney.kernels.triton.emit_tile import NONE
from jitney.kernels.triton.expressions import TYPES
from jitney.kernels.triton.kernel_source import RELEASE, WAIT
from jitney.kernels.triton.stream_turns import TurnEmitter
from jitney.loops.index import Axis, Index
from jitney.loops.ir import Loop, Store
from jitney.loops.points import points_of
from jitney.loops.visit import loads, stores


class WalkEmitter(TurnEmitter):
    """A turn emitter that also walks: each column's sum stays in registers until the end."""

    @abstractmethod
    def _rows(self, axes: tuple[Axis, ...]) -> AbstractContextManager[None]:
        """Binds inner axes to the ``r`` dimension."""

    @abstractmethod
    def _load_ahead(self) -> None:
        """Asks for all of a row before anything is done with it."""

    def _emit_walk(self) -> tuple[Index, ...]:
        """The whole kernel; its grid."""
        *outer, step = self.nest.axes
        sums = [s for s in stores(self.nest.body) if s.mode == "sum"]
        (columns,) = {
            s for s in self.nest.body if isinstance(s, Loop) and set(sums) & {*stores(s.body)}
        }
        block, rows = self.schedule.x_block, int(step.extent)
        while rows % block:
            block //= 2
        self.sizes["x"] = block
        wide = ".to(tl.int64)" if self.wide else ""
        self._line(f"program = tl.program_id(0){wide}")
        self._unflatten("program", tuple(outer), NONE)
        self._line(RELEASE)
        self._line(WAIT)
        with self._rows(columns.axes):
            self._load_shared(columns)
            shape = self._shape(frozenset(self.dims))
            for store in sums:
                name = self.sums[store.buffer] = self._name("sum")
                self._line(f"{name} = tl.full({shape}, 0, {TYPES[store.value.dtype]})")
        self._line(f"for turn in range(0, {rows}, {block}):")
        self.indent += 1
        self.memo.append({})
        self._line(f"x = turn + tl.arange(0, {block}){self._expand('x')}{wide}")
        self._unflatten("x", (step,), frozenset("x"))
        self._load_ahead()
        self._statements(self.nest.body)
        self.memo.pop()
        self.indent -= 1
        self.order.forget()
        with self._rows(columns.axes):
            for store in sums:
                self._store_sum(store)
        return (points_of(tuple(outer)),)

    def _load_shared(self, columns: Loop) -> None:
        """Loads what all rows share, as a norm's weight, once."""
        written = {store.buffer for store in stores(self.nest.body)}
        known = {*self.nest.axes[:-1], *columns.axes}
        for load in loads(columns.body):
            if load.mask is None and load.buffer not in written:
                if set(load.index.atoms()) <= known:
                    self._expr(load)

    def _store_sum(self, store: Store) -> None:
        """Hands over the sum of a chunk's rows."""
        axis = self.dims.index("x")
        where, on = self._index(store.index)
        pointer = self._address(store.buffer, store.value.dtype, where, on)
        total = f"tl.sum({self.sums[store.buffer]}, {axis}){self._keep('x')}"
        mask = f", mask={self.masks['r']}" if "r" in self.masks else ""
        self._line(f"tl.store({pointer}, {total}{mask})")
