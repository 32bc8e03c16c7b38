"""A matrix product of many rows with its epilogue, as one kernel that stays on the GPU.

As many programs as there are multiprocessors walk the tiles of the result. Tensor memory
descriptors fetch the operands asynchronously, and the loops over tiles and over k are one for the
compiler (``flatten``), so that a tile's first operands arrive during the epilogue of the tile
before. The epilogue runs on the two halves of a tile's columns in turn, to need fewer registers.
Needs a GPU of capability 9.0 or later.
"""

from __future__ import annotations

from jitney.kernels.triton.gemm_tile import GemmEmitter
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_gemm import GemmSchedule, tiles
from jitney.loops.index import Axis, index
from jitney.loops.ir import Access, Gemm, Store

#: Rows of tiles that follow each other before the next columns: they share what is in the cache.
GROUP = 8


def emit_persistent_gemm(gemm: Gemm, schedule: GemmSchedule) -> KernelSource:
    """The kernel for a ``gemm`` that `can_persist` allows."""
    return PersistentGemmEmitter(gemm, schedule).emit()


class PersistentGemmEmitter(GemmEmitter):
    """Writes one product's kernel; used for one product and thrown away."""

    def __init__(self, gemm: Gemm, schedule: GemmSchedule) -> None:
        super().__init__(gemm, schedule)
        self.sizes["x"] = schedule.n_block // 2
        self.column = ""

    def emit(self) -> KernelSource:
        """A kernel of ``schedule.programs`` at most, which go over all tiles."""
        gemm, tile = self.gemm, self.schedule
        down, across = tiles(gemm, tile)
        programs = min(tile.programs, down * across)
        self._descriptor("left", gemm.a, (gemm.m, gemm.k), (tile.m_block, tile.k_block))
        self._descriptor("right", gemm.b, (gemm.n, gemm.k), (tile.n_block, tile.k_block))
        for number, store in enumerate(gemm.epilogue):
            if isinstance(store, Store) and can_store_tile(store, gemm):
                made = Access(store.buffer, store.index, store.value.dtype)
                shape = (tile.m_block, tile.n_block // 2)
                self._descriptor(f"out{number}", made, (gemm.m, gemm.n), shape)
        self._line(RELEASE)
        self._line(WAIT)
        loop = f"tl.program_id(0), {down * across}, {programs}, flatten=True"
        self._line(f"for tile in tl.range({loop}):")
        self.indent += 1
        self._line(f"first = tile // {GROUP * across} * {GROUP}")
        self._line(f"height = min({down} - first, {GROUP})")
        self._line(f"down = (first + tile % {GROUP * across} % height) * {tile.m_block}")
        self._line(f"over = tile % {GROUP * across} // height * {tile.n_block}")
        self._sums()
        self._span("y", "down", gemm.m, "[:, None]")
        for half in range(2):
            self.memo.append({})
            self.column = f"over + {half * tile.n_block // 2}"
            self._span("x", self.column, gemm.n, "[None, :]")
            self.refs["acc"] = (f"acc{half}", frozenset(("y", "x")))
            self._epilogue()
            self.memo.pop()
        return self._source(programs)

    def _sums(self) -> None:
        """The loop over k, its tile of sums in two halves."""
        rows, columns = self.schedule.m_block, self.schedule.n_block
        self._line(f"acc = tl.zeros([{rows}, {columns}], tl.float32)")
        self._line(f"for k in range(0, {int(self.gemm.k.extent)}, {self.schedule.k_block}):")
        self._line("    b = right.load([over, k])")
        self._line("    acc = tl.dot(left.load([down, k]), b.T, acc)")
        halves = f"tl.reshape(acc, [{rows}, 2, {columns // 2}])"
        self._line(f"acc0, acc1 = tl.split(tl.permute({halves}, (0, 2, 1)))")

    def _descriptor(
        self, name: str, access: Access, axes: tuple[Axis, Axis], tile: tuple[int, int]
    ) -> None:
        """Of the matrix that ``access`` walks along ``axes``, the second contiguous."""
        pointer = self._pointer(access.buffer, access.dtype)
        stride = access.index.coefficient(axes[0])
        start = access.index.substitute(dict.fromkeys(axes, index(0)))
        shape = [int(axis.extent) for axis in axes]
        text = f"{pointer} + {int(start)}, {shape}, [{int(stride or 0)}, 1], {list(tile)}"
        self._line(f"{name} = tl.make_tensor_descriptor({text})")

    def _store(self, stmt: Store) -> None:
        if not can_store_tile(stmt, self.gemm):
            super()._store(stmt)
            return
        value, on = self._expr(stmt.value)
        value = self._spread(value, on, frozenset(("y", "x")))
        number = self.gemm.epilogue.index(stmt)
        self._line(f"out{number}.store([down, {self.column}], {value})")
        self._forget_loads(self._pointer(stmt.buffer, stmt.value.dtype))


def can_store_tile(store: Store, gemm: Gemm) -> bool:
    """Whether a result is stored as rows that a descriptor can write: aligned to 16 bytes."""
    across, stride = (store.index.coefficient(axis) for axis in (gemm.n, gemm.m))
    start = store.index.substitute({gemm.m: index(0), gemm.n: index(0)})
    if across != index(1) or stride is None or not stride.is_const or not start.is_const:
        return False
    wide = 16 // store.value.dtype.itemsize
    aligned = stride.const % wide == 0 and start.const % wide == 0 and stride.const > 0
    return aligned and store.mask is None and store.mode == "set"
