"""A matrix product of few rows as the source of one Triton kernel with its epilogue.

Programs lie in one dimension: tiles along m fastest (they share columns of B), then along n, then
the batch. The epilogue runs on the tile of sums, ``y`` along m and ``x`` along n.
"""

from __future__ import annotations

import torch

from jitney.errors import CompilerBug
from jitney.kernels.triton.emit_tile import NONE, TileEmitter
from jitney.kernels.triton.expressions import ends_in_16_bits
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_gemm import GemmSchedule, tiles
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Access, Gemm, Let, Store
from jitney.loops.points import points_of


def emit_gemm(gemm: Gemm, schedule: GemmSchedule) -> KernelSource:
    """The kernel for ``gemm``, sizes known; ``schedule.splits`` is the caller's to have made."""
    return GemmEmitter(gemm, schedule).emit()


class GemmEmitter(TileEmitter):
    """Writes one product's kernel; used for one product and thrown away."""

    def __init__(self, gemm: Gemm, schedule: GemmSchedule) -> None:
        super().__init__(("y", "x"), {"y": schedule.m_block, "x": schedule.n_block})
        self.gemm, self.schedule = gemm, schedule
        self.rough = ends_in_16_bits(gemm.epilogue)

    def emit(self) -> KernelSource:
        """A kernel of a program for each tile."""
        programs = self._bind_tile()
        self._line(RELEASE)
        self._line(WAIT)
        self._product()
        self._epilogue()
        return self._source(programs)

    def _epilogue(self) -> None:
        for stmt in self.gemm.epilogue:
            if isinstance(stmt, Let):
                self._let(stmt)
            elif isinstance(stmt, Store):
                self._store(stmt)
            else:
                raise CompilerBug("an epilogue with a loop reached the Triton backend")

    def _source(self, programs: int) -> KernelSource:
        warps, stages = self.schedule.num_warps, self.schedule.num_stages
        return self._kernel(self.gemm.name, (index(programs),), warps, stages)

    def _bind_tile(self) -> int:
        down, across = tiles(self.gemm, self.schedule)
        self._line("pid = tl.program_id(0)")
        high, wide = self.sizes["y"], self.sizes["x"]
        self._span("y", f"(pid % {down}) * {high}", self.gemm.m, "[:, None]")
        self._span("x", f"(pid // {down} % {across}) * {wide}", self.gemm.n, "[None, :]")
        step = down * across
        for axis in reversed(self.gemm.batch):
            self.atoms[axis] = self._bind(f"pid // {step} % {int(axis.extent)}", NONE)[0]
            self.depends[axis] = NONE
            step *= int(axis.extent)
        return down * across * int(points_of(self.gemm.batch))

    def _span(self, dim: str, start: str, axis: Axis, expand: str) -> None:
        """Binds ``axis`` to a dimension of the tile, which begins at ``start``."""
        block = self.sizes[dim]
        self._line(f"{dim} = {start} + tl.arange(0, {block}){expand}")
        self.masks.pop(dim, None)
        if int(axis.extent) % block:
            self._line(f"{dim}mask = {dim} < {int(axis.extent)}")
            self.masks[dim] = f"{dim}mask"
        self.atoms[axis], self.depends[axis] = dim, frozenset(dim)

    def _product(self) -> None:
        """The loop over k; what does not change in it is computed before it."""
        depth, block = int(self.gemm.k.extent), self.schedule.k_block
        self._line(f"ka = tl.arange(0, {block})[None, :]")
        self._line(f"kb = tl.arange(0, {block})[:, None]")
        left = self._operand(self.gemm.a, "ka", (self.sizes["y"], block))
        right = self._operand(self.gemm.b, "kb", (block, self.sizes["x"]))
        self._line(f"acc = tl.zeros([{self.sizes['y']}, {self.sizes['x']}], tl.float32)")
        self._line(f"for k in range(0, {depth}, {block}):")
        self.indent += 1
        ragged = depth % block != 0
        for name, at, along, dim in (("a", left, "ka", "y"), ("b", right, "kb", "x")):
            inside = [self.masks[dim]] if dim in self.masks else []
            inside += [f"({along} < {depth} - k)"] if ragged else []
            mask = f", mask={' & '.join(inside)}, other=0.0" if inside else ""
            self._line(f"{name} = tl.load({at}{mask})")
        full = self.gemm.a.dtype == torch.float32
        precision = ', input_precision="ieee"' if full else ""
        self._line(f"acc = tl.dot(a, b, acc{precision})")
        self.indent -= 1
        self.refs["acc"] = ("acc", frozenset(("y", "x")))

    def _operand(self, access: Access, along: str, shape: tuple[int, int]) -> str:
        """The text of the operand's addresses inside the loop over ``k``."""
        pointer = self._pointer(access.buffer, access.dtype)
        stride = access.index.coefficient(self.gemm.k)
        if stride is None or not stride.is_const:
            return f"{pointer} + {self._at(access.index, f'(k + {along})', shape)}"
        start = self._bind(f"{pointer} + {self._at(access.index, along, shape)}", NONE)[0]
        return f"{start} + k * {int(stride)}"

    def _at(self, where: Index, k_text: str, shape: tuple[int, int]) -> str:
        self.atoms[self.gemm.k] = k_text
        text = self._index(where)[0]
        across = self.gemm.m if k_text.endswith(("ka", "ka)")) else self.gemm.n
        if not {self.gemm.k, across} <= where.atoms():
            return f"tl.broadcast_to({text} + tl.zeros([1, 1], tl.int32), {list(shape)})"
        return text
