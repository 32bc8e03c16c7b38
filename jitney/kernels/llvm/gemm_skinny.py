"""Few rows of A: B is read once, as it lies in memory, and nothing is packed."""

from __future__ import annotations

from jitney.kernels.llvm.column_axpy import Axpy, axpy_routine
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_plan import LayoutOfA
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.kernels.llvm.row_dot import RowDot, row_dot_routine
from jitney.loops.index import Index


def stream_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """All rows of A at once over long stretches of columns, B's n contiguous."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    rows, size = int(gemm.m.extent), plan.dtype.itemsize
    routine = code.use(axpy_routine(Axpy(rows, plan.lanes, plan.dtype)))
    code.scratch_bytes = rows * plan.width * size
    with f.items() as item:
        scope, flat, (number,) = code.item(f, item.index, code.panels())
        column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
        table = code.row_pointers(f, scope, [str(r) for r in range(rows)], flat)
        left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {column}")
        count = f.text.smaller(left, str(plan.width))
        b = f.address(scope.inner({gemm.n: column}), gemm.b, (gemm.k,))
        arguments = (
            f"ptr {table}, i64 {code.a_step(f)}, ptr {b}, i64 {f.step(gemm.b, gemm.k)}, "
            f"i64 {code.k_steps(f)}, i64 {count}, ptr %scratch, i64 {plan.width * size}"
        )
        f.text.do(f"call void @{routine}({arguments})")
        code.epilogue(f, scope, "0", str(rows), column, plan.width, "%scratch")
    work = rows * plan.width * max(gemm.k.extent.hint(), 1) * max(1, 8 // rows)
    return f, code.batches() * code.panels(), float(work)


def row_dot_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """Dot products of every row of A with a panel's rows of B, k contiguous."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    rows = int(gemm.m.extent)
    line = plan.width * plan.dtype.itemsize
    with f.items() as item:
        scope, flat, (number,) = code.item(f, item.index, code.panels())
        column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
        sums = f.text.allocate(rows * line)
        table = code.row_pointers(f, scope, [str(r) for r in range(rows)], flat)
        left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {column}")
        end = f.text.smaller(left, str(plan.width))
        group = _columns(rows)
        with f.text.loop("0", end, step=group, nonempty=True) as loop:
            n = f.text.pure(f"add nsw i64 {column}, {loop.index}")
            columns = _column_pointers(code, f, scope, n, group)
            out = f.offset(sums, loop.index, plan.dtype.itemsize)
            _dots(code, f, table, columns, out, group)
        code.epilogue(f, scope, "0", str(rows), column, plan.width, sums)
    work = rows * plan.width * max(gemm.k.extent.hint(), 1) * max(1, 8 // rows)
    return f, code.batches() * code.panels(), float(work)


def _columns(rows: int) -> int:
    """Rows of B taken at once: enough sums to hide the latency of an FMA, few enough to keep."""
    return 8 if rows == 1 else 4


def _column_pointers(code: GemmCode, f: PhaseFunction, scope: Scope, n: str, group: int) -> str:
    gemm = code.gemm
    table = f.text.allocate(8 * group)
    last = f.size(gemm.n.extent - 1)
    for c in range(group):
        # A panel may end inside a group: its last columns repeat, and the epilogue drops them.
        at = f.text.smaller(f.text.pure(f"add nsw i64 {n}, {c}"), last)
        pointer = f.address(scope.inner({gemm.n: at}), gemm.b, (gemm.k,))
        slot = f.text.pure(f"getelementptr i8, ptr {table}, i64 {8 * c}")
        f.text.do(f"store ptr {pointer}, ptr {slot}, align 8")
    return table


def _dots(code: GemmCode, f: PhaseFunction, table: str, columns: str, out: str, group: int) -> None:
    """The products of a group of columns with all rows, at most four rows at a time."""
    gemm, plan = code.gemm, code.plan
    rows = int(gemm.m.extent)
    line = plan.width * plan.dtype.itemsize
    parts = -(-rows // 4)
    first = 0
    for part in range(parts):
        count = (rows - first) // (parts - part)
        a = gemm.a.dtype if plan.a is LayoutOfA.DIRECT else plan.dtype
        unroll = 2 if count * group <= 8 else 1
        dot = RowDot(count, group, unroll, plan.lanes, a, gemm.b.dtype, plan.dtype, plan.pairs)
        here = f.text.pure(f"getelementptr i8, ptr {table}, i64 {8 * first}")
        target = f.text.pure(f"getelementptr i8, ptr {out}, i64 {line * first}")
        ahead = f.text.pure(f"mul nsw i64 {f.step(gemm.b, gemm.n)}, {group if not part else 0}")
        arguments = (
            f"ptr {here}, ptr {columns}, i64 {f.size(gemm.k.extent)}, ptr {target}, "
            f"i64 {line}, i64 {ahead}"
        )
        f.text.do(f"call void @{code.use(row_dot_routine(dot))}({arguments})")
        first += count
