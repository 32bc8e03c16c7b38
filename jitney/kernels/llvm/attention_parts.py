"""The scratch of an attention work item, and the loops that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jitney.kernels.llvm.accesses import store_lanes
from jitney.kernels.llvm.attention_plan import AttentionPlan, first_and_last_key
from jitney.kernels.llvm.conversions import broadcast, cast
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.gemm_parts import RATE, lanes_below, tail_mask
from jitney.kernels.llvm.gemm_tile import Routine
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.node_code import NodeCode, Phase
from jitney.kernels.llvm.operations import emit_op
from jitney.kernels.llvm.phase_function import PhaseFunction, node_operands
from jitney.kernels.llvm.ssa import Ssa, constant, llvm_type
from jitney.loops import visit
from jitney.loops.index import Axis, Index
from jitney.loops.ir import Access, Attention, Load


@dataclass(frozen=True)
class Block:
    """A work item: batch axes bound in ``scope``, ``rows`` rows of the query from ``first``."""

    scope: Scope
    first: str
    rows: str


class AttentionCode:
    """An attention node's only phase as it grows; SSA pointers name the pieces of scratch.

    ``scores`` [rows, pitch]; ``sums`` [rows, depth], the output before division; ``maxima``,
    ``totals`` and ``rescale`` [rows]; ``panel`` of keys; ``query``, ``converted`` keys and
    ``values`` where those are copied.
    """

    def __init__(self, node: Attention, plan: AttentionPlan, isa: Isa) -> None:
        self.node, self.plan = node, plan
        self.buffers, self.scalars = node_operands(node)
        self.f = PhaseFunction(self.buffers, self.scalars, visit.writes(node), isa)
        self._texts: set[str] = set()
        self._bytes = 0
        size, d = plan.dtype.itemsize, int(node.d.extent)
        self.scores = self._piece(plan.rows * plan.pitch * size)
        self.sums = self._piece(plan.rows * plan.depth * size)
        self.maxima, self.totals, self.rescale = (self._piece(plan.rows * size) for _ in range(3))
        self.panel = self._piece(d * plan.panel * size)
        self.query = self._piece(plan.rows * d * size if plan.q == "copied" else 0)
        self.converted = self._piece(plan.panel * d * size if plan.k == "converted" else 0)
        self.values = self._piece(plan.keys * plan.depth * size if plan.v != "direct" else 0)

    def _piece(self, size: int) -> str:
        start, self._bytes = self._bytes, self._bytes + -(-size // 64) * 64
        return self.f.text.pure(f"getelementptr i8, ptr %scratch, i64 {start}")

    def use(self, routine: Routine) -> str:
        """The name of a shared routine, which the module will hold."""
        self._texts |= routine.texts
        return routine.name

    def finish(self, items: Index, work: float) -> NodeCode:
        """The node's code; ``work`` is multiply-adds an item."""
        name, text = self.f.finish()
        return NodeCode(
            text,
            (Phase(name, items, work / RATE),),
            self.buffers,
            self.scalars,
            self._bytes,
            declarations=frozenset(self._texts | self.f.text.declarations),
        )

    # ---------------------------------------------------------------- scalars and vectors

    def element(self, base: str, position: str) -> str:
        """The address of element ``position`` of a piece of scratch."""
        return self.f.offset(base, position, self.plan.dtype.itemsize)

    def load(self, pointer: str, lanes: int = 0) -> Ssa:
        """One value, or a vector, of scratch."""
        kind = llvm_type(self.plan.dtype, lanes)
        name = self.f.text.emit(f"load {kind}, ptr {pointer}, align {self.plan.dtype.itemsize}")
        return Ssa(name, self.plan.dtype, lanes)

    def store(self, value: Ssa, pointer: str) -> None:
        """Writes a value or vector to scratch."""
        self.f.text.do(f"store {value.typed}, ptr {pointer}, align {self.plan.dtype.itemsize}")

    def clear_sums(self, rows: str) -> None:
        """Stores the state before the first key."""
        plan, text = self.plan, self.f.text
        with text.loop("0", rows, nonempty=True) as row:
            self.store(constant(float("-inf"), plan.dtype), self.element(self.maxima, row.index))
            self.store(constant(0.0, plan.dtype), self.element(self.totals, row.index))
            line = self.f.offset(self.sums, row.index, plan.depth * plan.dtype.itemsize)
            with text.loop("0", str(plan.depth), step=plan.lanes, nonempty=True) as c:
                self.store(constant(0.0, plan.dtype, plan.lanes), self.element(line, c.index))

    def add_product(self, first: str, rows: str, product: str, vector: int, vectors: int) -> None:
        """Rescales ``rows`` rows of the sums from ``first`` on and adds a tile's result, from
        vector ``vector`` of the row on."""
        plan, text, size = self.plan, self.f.text, self.plan.dtype.itemsize
        with text.loop("0", rows, nonempty=True) as row:
            here = text.pure(f"add nsw i64 {first}, {row.index}")
            factor = broadcast(text, self.load(self.element(self.rescale, here)), plan.lanes)
            source = self.f.offset(product, row.index, vectors * plan.lanes * size)
            target = self.f.offset(self.sums, here, plan.depth * size)
            for v in range(vectors):
                at = self.element(target, str((vector + v) * plan.lanes))
                new = self.load(self.element(source, str(v * plan.lanes)), plan.lanes)
                old = self.load(at, plan.lanes)
                self.store(emit_op(text, "fma", [old, factor, new], plan.dtype), at)

    @contextmanager
    def keys_of_tile(self, block: Block, row: str, key: str, count: str) -> Iterator[str]:
        """How many of ``count`` keys from ``key`` on are kept by any row of the tile at ``row``. A
        context: what is written inside runs only when there are some."""
        _, last = first_and_last_key(self.node)
        if last is None:
            yield count
            return
        f = self.f
        final = f.text.pure(f"add nsw i64 {row}, {self.plan.tile_rows}")
        final = f.text.pure(f"add nsw i64 {f.text.smaller(final, block.rows)}, {block.first}")
        final = f.text.pure(f"sub nsw i64 {final}, 1")
        end = block.scope.inner({self.node.s: final}).indices.uniform(last)
        wanted = f.text.smaller(f.text.pure(f"sub i64 {end}, {key}"), count)
        with f.text.when(f.text.pure(f"icmp sgt i64 {wanted}, 0")):
            yield wanted

    # ---------------------------------------------------------------- operands

    def q_step(self) -> str:
        """Bytes from one element (or pair) of a query row to the next."""
        if self.plan.k == "pairs":
            return "4"
        if self.plan.q == "copied":
            return str(self.plan.dtype.itemsize)
        return self.f.step(self.node.q, self.node.d)

    def query_rows(self, block: Block, row: str, count: int) -> str:
        """A table of pointers to ``count`` rows of the query from the block's row ``row`` on;
        rows past the end repeat the last."""
        f, node = self.f, self.node
        table = f.text.allocate(8 * count)
        last = f.text.pure(f"sub nsw i64 {block.rows}, 1")
        for r in range(count):
            at = f.text.smaller(f.text.pure(f"add nsw i64 {row}, {r}"), last)
            if self.plan.q == "copied":
                pointer = f.offset(self.query, at, int(node.d.extent) * self.plan.dtype.itemsize)
            else:
                s = f.text.pure(f"add nsw i64 {block.first}, {at}")
                pointer = f.address(block.scope.inner({node.s: s}), node.q, (node.d,))
            f.text.do(f"store ptr {pointer}, ptr {self._slot(table, r)}, align 8")
        return table

    def score_rows(self, row: str, count: int) -> str:
        """A table of pointers to ``count`` rows of the scores."""
        table = self.f.text.allocate(8 * count)
        for r in range(count):
            at = self.f.text.pure(f"add nsw i64 {row}, {r}")
            pointer = self.f.offset(self.scores, at, self.plan.pitch * self.plan.dtype.itemsize)
            self.f.text.do(f"store ptr {pointer}, ptr {self._slot(table, r)}, align 8")
        return table

    def _slot(self, table: str, position: int) -> str:
        return self.f.text.pure(f"getelementptr i8, ptr {table}, i64 {8 * position}")

    def copy_query(self, block: Block) -> None:
        """Brings the block's query rows into scratch where tiles cannot read them in place."""
        if self.plan.q == "copied":
            width = int(self.node.d.extent)
            self.convert_rows(
                block, self.node.q, self.node.d, block.first, block.rows, self.query, width
            )

    def convert_rows(
        self,
        block: Block,
        access: Access,
        inner: Axis,
        first: str,
        count: str,
        out: str,
        width: int,
    ) -> None:
        """``out[i, 0:width] = access[first + i, :]`` in the plan's dtype, any strides; elements
        past ``inner``'s end are 0 up to ``width``."""
        f, plan, node = self.f, self.plan, self.node
        outer = node.s if access is node.q else node.t
        load = Load(access.buffer, access.index, access.dtype)
        with f.text.loop("0", count, nonempty=True) as row:
            at = f.text.pure(f"add nsw i64 {first}, {row.index}")
            line = f.offset(out, row.index, width * plan.dtype.itemsize)
            with f.text.loop("0", str(width), step=plan.lanes, nonempty=True) as c:
                mask = tail_mask(f, inner, c.index, plan.lanes)
                scope = block.scope.inner(
                    {outer: at, inner: c.index}, Lanes(inner, plan.lanes), mask
                )
                value = broadcast(f.text, cast(f.text, scope.emit(load), plan.dtype), plan.lanes)
                mask = mask if width % plan.lanes else None
                store_lanes(f.text, value, self.element(line, c.index), mask)

    def gather_keys(self, block: Block, key: str) -> None:
        """A panel of keys from ``key`` on, element by element, from any layout."""
        f, plan, node = self.f, self.plan, self.node
        load = Load(node.k.buffer, node.k.index, node.k.dtype)
        with f.text.loop("0", f.size(node.d.extent), nonempty=True) as d:
            line = f.offset(self.panel, d.index, plan.panel * plan.dtype.itemsize)
            for v in range(plan.k_vectors):
                t = f.text.pure(f"add nsw i64 {key}, {v * plan.lanes}")
                left = f.text.pure(f"sub i64 {f.size(node.t.extent)}, {t}")
                scope = block.scope.inner(
                    {node.d: d.index, node.t: t},
                    Lanes(node.t, plan.lanes, aligned=False),
                    lanes_below(f, left, plan.lanes),
                )
                value = broadcast(f.text, cast(f.text, scope.emit(load), plan.dtype), plan.lanes)
                self.store(value, self.element(line, str(v * plan.lanes)))
