"""What the phases of a GEMM share: its operands in shared memory, and its epilogue."""

from __future__ import annotations

import math

import torch

from jitney.kernels.llvm.conversions import broadcast
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.gemm_plan import GemmPlan, LayoutOfA, LayoutOfB
from jitney.kernels.llvm.gemm_tile import Routine
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.node_code import NodeCode, Phase
from jitney.kernels.llvm.pack_rows import PackedRows, packed_row
from jitney.kernels.llvm.phase_function import PhaseFunction, node_operands
from jitney.kernels.llvm.ssa import Ssa, iota, llvm_type
from jitney.loops import ir, visit
from jitney.loops.index import Axis, Index, index
from jitney.loops.points import points_of

#: Multiply-adds per nanosecond of one core, for the estimate that decides how many threads pay.
RATE = 40.0


class GemmCode:
    """A GEMM's code as it grows, phase by phase."""

    def __init__(self, gemm: ir.Gemm, plan: GemmPlan, isa: Isa) -> None:
        self.gemm, self.plan, self.isa = gemm, plan, isa
        self.buffers, self.scalars = node_operands(gemm)
        self._texts: dict[str, str] = {}
        self._declarations: set[str] = set()
        self._phases: list[Phase] = []
        self.scratch_bytes = 0

    # ---------------------------------------------------------------- phases

    def function(self) -> PhaseFunction:
        """A fresh phase function over the node's operands."""
        return PhaseFunction(self.buffers, self.scalars, visit.writes(self.gemm), self.isa)

    def add(self, f: PhaseFunction, items: Index, work: float) -> None:
        """Appends a phase; ``work`` is multiply-adds (or elements moved) an item."""
        name, text = f.finish()
        self._texts[name] = text
        self._declarations |= f.text.declarations
        self._phases.append(Phase(name, items, max(work, 1.0) / RATE))

    def use(self, routine: Routine) -> str:
        """The name of a shared routine, which the module will hold."""
        self._declarations |= routine.texts
        return routine.name

    def finish(self) -> NodeCode:
        """The node's code."""
        return NodeCode(
            "\n".join(self._texts.values()),
            tuple(self._phases),
            self.buffers,
            self.scalars,
            self.scratch_bytes,
            self.shared_bytes(),
            frozenset(self._declarations),
        )

    # ---------------------------------------------------------------- sizes

    def batches(self) -> Index:
        """Number of products in the batch."""
        return points_of(self.gemm.batch)

    def panels(self) -> Index:
        """Number of panels B has."""
        return (self.gemm.n.extent + (self.plan.width - 1)) // self.plan.width

    def groups(self) -> Index:
        """Number of work items a block of rows has: panels, or some beside one another."""
        return (self.panels() + (self.plan.beside - 1)) // self.plan.beside

    def blocks(self) -> Index:
        """Number of blocks of rows A has."""
        return (self.gemm.m.extent + (self.plan.block - 1)) // self.plan.block

    def panel_elements(self) -> Index:
        """Elements of one packed panel."""
        return self.gemm.k.extent * self.plan.width

    def packed_a(self) -> PackedRows:
        """The layout of a packed block of A."""
        plan = self.plan
        return PackedRows(plan.dtype.itemsize, plan.rows, int(self.gemm.k.extent))

    def a_copy_bytes(self) -> Index:
        """Bytes of the shared copy of A (rounded up to whole lines), 0 without one."""
        if self.plan.a is not LayoutOfA.COPIED:
            return index(0)
        size = self.batches() * self.gemm.m.extent * self.gemm.k.extent * self.plan.a_dtype.itemsize
        return (size + 63) // 64 * 64

    def shared_bytes(self) -> Index:
        """Shared memory of the node: the copy of A, then the packed B."""
        if self.plan.b is not LayoutOfB.SHARED:
            return self.a_copy_bytes()
        panels = self.batches() * self.panels() * self.panel_elements()
        return self.a_copy_bytes() + panels * self.plan.dtype.itemsize

    # ---------------------------------------------------------------- work items

    def item(self, f: PhaseFunction, number: str, *counts: Index) -> tuple[Scope, str, list[str]]:
        """Of work item ``number``, counted over (batch, *counts), the last fastest: the scope of
        its product, that product's number in the batch, and its numbers within ``counts``."""
        batch = self.gemm.batch
        digits = f.unflatten(number, [*(axis.extent for axis in batch), *counts])
        flat = f.text.pure(f"udiv i64 {number}, {f.size(math.prod(counts, start=index(1)))}")
        scope = f.scope.inner(dict(zip(batch, digits, strict=False)))
        return scope, flat, digits[len(batch) :]

    def rows_of(self, f: PhaseFunction, block: str) -> tuple[str, str]:
        """The first row of a block and the one past its last."""
        first = f.text.pure(f"mul nsw i64 {block}, {self.plan.block}")
        end = f.text.pure(f"add nsw i64 {first}, {self.plan.block}")
        return first, f.text.smaller(end, f.size(self.gemm.m.extent))

    def panels_of(self, f: PhaseFunction, group: str) -> tuple[str, str]:
        """The first panel of a group and the one past its last."""
        first = f.text.pure(f"mul nsw i64 {group}, {self.plan.beside}")
        end = f.text.pure(f"add nsw i64 {first}, {self.plan.beside}")
        return first, f.text.smaller(end, f.size(self.panels()))

    # ---------------------------------------------------------------- pieces of the product

    def row_pointers(
        self,
        f: PhaseFunction,
        scope: Scope,
        rows: list[str],
        batch: str,
        packed: str = "",
        k: str = "0",
    ) -> str:
        """A table of pointers to rows of A at step ``k``, ``rows`` being values of m; ``packed``:
        where the block's rows lie if they are packed."""
        table = f.text.allocate(8 * len(rows))
        for position, m in enumerate(rows):
            slot = f.text.pure(f"getelementptr i8, ptr {table}, i64 {8 * position}")
            row = self.row(f, scope, m, batch, packed)
            if k != "0":
                skipped = f.text.pure(f"mul nsw i64 {k}, {self.a_step(f)}")
                row = f.text.pure(f"getelementptr i8, ptr {row}, i64 {skipped}")
            f.text.do(f"store ptr {row}, ptr {slot}, align 8")
        return table

    def row(self, f: PhaseFunction, scope: Scope, m: str, batch: str, packed: str) -> str:
        """Where A's row ``m`` begins."""
        gemm = self.gemm
        if self.plan.a is LayoutOfA.DIRECT:
            return f.address(scope.inner({gemm.m: m}), gemm.a, (gemm.k,))
        if self.plan.a is LayoutOfA.PACKED:
            within = f.text.pure(f"urem i64 {m}, {self.plan.block}")
            return packed_row(f, self.packed_a(), packed, within)
        row = f.text.pure(f"mul nsw i64 {batch}, {f.size(gemm.m.extent)}")
        row = f.text.pure(f"add nsw i64 {row}, {m}")
        row = f.text.pure(f"mul nsw i64 {row}, {f.size(gemm.k.extent)}")
        return f.offset("%shared", row, self.plan.a_dtype.itemsize)

    def a_pitch(self, f: PhaseFunction) -> str:
        """Bytes from one row of A to the next, read in place or copied."""
        if self.plan.a is LayoutOfA.COPIED:
            return f.size(self.gemm.k.extent * self.plan.a_dtype.itemsize)
        return f.step(self.gemm.a, self.gemm.m)

    def a_step(self, f: PhaseFunction) -> str:
        """Bytes from one k (or pair of k) of A to the next."""
        if self.plan.pairs:
            return "4"
        match self.plan.a:
            case LayoutOfA.COPIED:
                return str(self.plan.dtype.itemsize)
            case LayoutOfA.PACKED:
                return str(self.packed_a().step)
            case _:
                return f.step(self.gemm.a, self.gemm.k)

    @property
    def has_terms(self) -> bool:
        """Whether the sum over k certainly has a term."""
        low = self.gemm.k.extent.bounds()[0]
        return low is not None and low > 0

    def k_steps(self, f: PhaseFunction) -> str:
        """Steps of the tile's loop: k, or pairs of k."""
        return f.size(self.gemm.k.extent // 2 if self.plan.pairs else self.gemm.k.extent)

    def epilogue(
        self, f: PhaseFunction, scope: Scope, m: str, rows: str, n: str, width: int, sums: str
    ) -> None:
        """Runs the epilogue over ``rows`` rows from ``m`` and up to ``width`` columns from ``n``
        on the sums at ``sums`` (rows of ``width`` elements)."""
        gemm, plan = self.gemm, self.plan
        left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {n}")
        end = f.text.smaller(left, str(width))
        with f.text.loop("0", rows, nonempty=True) as row:
            m_now = f.text.pure(f"add nsw i64 {m}, {row.index}")
            line = f.offset(sums, row.index, width * plan.dtype.itemsize)
            with f.text.loop("0", end, step=plan.lanes, nonempty=True) as column:
                n_now = f.text.pure(f"add nsw i64 {n}, {column.index}")
                at = f.offset(line, column.index, plan.dtype.itemsize)
                kind = llvm_type(plan.dtype, plan.lanes)
                value = f.text.emit(f"load {kind}, ptr {at}, align {plan.dtype.itemsize}")
                inner = scope.inner(
                    {gemm.m: m_now, gemm.n: n_now},
                    Lanes(gemm.n, plan.lanes),
                    mask=tail_mask(f, gemm.n, n_now, plan.lanes),
                    values={"acc": Ssa(value, plan.dtype, plan.lanes)},
                )
                inner.run(gemm.epilogue)


def tail_mask(
    f: PhaseFunction, axis: Axis, first: str, lanes: int, *, step: int | None = None
) -> Ssa | None:
    """Which of the lanes from ``first`` on exist; None when all always do. ``step``: whole groups
    of so many are walked through, which ``lanes`` divides; each of the lanes by default."""
    if axis.extent.is_const and int(axis.extent) % (step or lanes) == 0:
        return None
    return lanes_below(f, f.text.pure(f"sub i64 {f.size(axis.extent)}, {first}"), lanes)


def lanes_below(f: PhaseFunction, count: str, lanes: int) -> Ssa:
    """A mask of the first ``count`` lanes."""
    wide = broadcast(f.text, Ssa(count, torch.int64), lanes)
    name = f.text.pure(f"icmp slt <{lanes} x i64> {iota(lanes).name}, {wide.name}")
    return Ssa(name, torch.bool, lanes)
