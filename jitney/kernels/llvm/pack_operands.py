"""Phases that bring an operand of a GEMM into shared memory when no tile can read it in place."""

from __future__ import annotations

from jitney.kernels.llvm.accesses import store_lanes
from jitney.kernels.llvm.conversions import broadcast, cast
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.gemm_parts import GemmCode, tail_mask
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.kernels.llvm.ssa import Ssa
from jitney.loops.index import Index
from jitney.loops.ir import Load


def copy_a_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """A row of A an item: converted to what the tiles multiply, the prologue applied, rows of k
    elements one after the other."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    extents = [*(axis.extent for axis in gemm.batch), gemm.m.extent]
    value = gemm.a_value or Load(gemm.a.buffer, gemm.a.index, gemm.a.dtype)
    with f.items() as item:
        *batch, m = f.unflatten(item.index, extents)
        axes = dict(zip((*gemm.batch, gemm.m), (*batch, m), strict=True))
        row = f.text.pure(f"mul nsw i64 {item.index}, {f.size(gemm.k.extent)}")
        row = f.offset("%shared", row, plan.a_dtype.itemsize)
        length = f.size(gemm.k.extent)
        with f.text.loop("0", length, step=plan.lanes, nonempty=code.has_terms) as k:
            scope = f.scope.inner(
                {**axes, gemm.k: k.index},
                Lanes(gemm.k, plan.lanes),
                tail_mask(f, gemm.k, k.index, plan.lanes),
            )
            element = broadcast(f.text, cast(f.text, scope.emit(value), plan.a_dtype), plan.lanes)
            store_lanes(f.text, element, f.offset(row, k.index, plan.a_dtype.itemsize), scope.mask)
    return f, code.batches() * gemm.m.extent, float(max(gemm.k.extent.hint(), 1))


def share_b_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """A packed panel of B an item, from any layout; columns past the last are 0."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    extents = [*(axis.extent for axis in gemm.batch), code.panels()]
    start = f.text.pure(f"getelementptr i8, ptr %shared, i64 {f.size(code.a_copy_bytes())}")
    with f.items() as item:
        *batch, number = f.unflatten(item.index, extents)
        scope = f.scope.inner(dict(zip(gemm.batch, batch, strict=True)))
        panel = f.text.pure(f"mul nsw i64 {item.index}, {f.size(code.panel_elements())}")
        panel = f.offset(start, panel, plan.dtype.itemsize)
        column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
        gather_panel(code, f, scope, column, panel)
    work = max(gemm.k.extent.hint(), 1) * plan.width
    return f, code.batches() * code.panels(), float(work)


def gather_panel(code: GemmCode, f: PhaseFunction, scope: Scope, column: str, out: str) -> None:
    """Packs the panel of B from ``column`` on, whatever B's index is, into ``out``."""
    gemm, plan = code.gemm, code.plan
    load = Load(gemm.b.buffer, gemm.b.index, gemm.b.dtype)
    with f.text.loop("0", f.size(gemm.k.extent), nonempty=code.has_terms) as k:
        line = f.offset(out, k.index, plan.width * plan.dtype.itemsize)
        for v in range(plan.vectors):
            n = f.text.pure(f"add nsw i64 {column}, {v * plan.lanes}")
            inner = scope.inner(
                {gemm.k: k.index, gemm.n: n},
                Lanes(gemm.n, plan.lanes),
                tail_mask(f, gemm.n, n, plan.lanes, step=plan.width),
            )
            value = cast(f.text, inner.emit(load), plan.dtype)
            value = broadcast(f.text, value, plan.lanes)
            store_lanes(
                f.text, value, f.offset(line, str(v * plan.lanes), plan.dtype.itemsize), None
            )


def gather_pairs(code: GemmCode, f: PhaseFunction, scope: Scope, column: str, out: str) -> None:
    """As `gather_panel` for bfloat16, the two of a pair of k side by side."""
    gemm, plan = code.gemm, code.plan
    load = Load(gemm.b.buffer, gemm.b.index, gemm.b.dtype)
    order = ", ".join(f"i32 {x}" for i in range(plan.lanes) for x in (i, plan.lanes + i))
    with f.text.loop("0", code.k_steps(f), nonempty=code.has_terms) as pair:
        line = f.offset(out, pair.index, plan.width * 4)
        first = f.text.pure(f"mul nsw i64 {pair.index}, 2")
        rows = (first, f.text.pure(f"add nsw i64 {first}, 1"))
        for v in range(plan.vectors):
            n = f.text.pure(f"add nsw i64 {column}, {v * plan.lanes}")
            mask = tail_mask(f, gemm.n, n, plan.lanes, step=plan.width)
            lanes = Lanes(gemm.n, plan.lanes)
            even, odd = (
                broadcast(
                    f.text, scope.inner({gemm.k: k, gemm.n: n}, lanes, mask).emit(load), plan.lanes
                )
                for k in rows
            )
            both = f.text.emit(
                f"shufflevector {even.typed}, {odd.typed}, <{2 * plan.lanes} x i32> <{order}>"
            )
            value = Ssa(both, even.dtype, 2 * plan.lanes)
            store_lanes(f.text, value, f.offset(line, str(v * plan.lanes), 4), None)


def convert_columns(
    code: GemmCode, f: PhaseFunction, scope: Scope, columns: tuple[str, str], out: str
) -> None:
    """Writes ``columns`` (first, count) of B to ``out`` in the accumulator's dtype, the k of each
    contiguous."""
    gemm, plan = code.gemm, code.plan
    load = Load(gemm.b.buffer, gemm.b.index, gemm.b.dtype)
    first, count = columns
    with f.text.loop("0", count, nonempty=True) as column:
        n = f.text.pure(f"add nsw i64 {first}, {column.index}")
        line = f.text.pure(f"mul nsw i64 {column.index}, {f.size(gemm.k.extent)}")
        line = f.offset(out, line, plan.dtype.itemsize)
        reach = f.size(gemm.k.extent)
        with f.text.loop("0", reach, step=plan.lanes, nonempty=code.has_terms) as k:
            mask = tail_mask(f, gemm.k, k.index, plan.lanes)
            lanes = Lanes(gemm.k, plan.lanes)
            inner = scope.inner({gemm.n: n, gemm.k: k.index}, lanes, mask)
            value = broadcast(f.text, cast(f.text, inner.emit(load), plan.dtype), plan.lanes)
            store_lanes(f.text, value, f.offset(line, k.index, plan.dtype.itemsize), mask)
