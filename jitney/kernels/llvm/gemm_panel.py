"""The panel style: a work item takes one panel of B's columns and a block of A's rows."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_tile import Routine, Tile, tile_routine
from jitney.kernels.llvm.pack_columns import copy_routine, interleave_routine, transpose_routine
from jitney.kernels.llvm.pack_operands import convert_columns, gather_panel
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.loops.index import Index


@dataclass(frozen=True)
class _Panel:
    """One work item: SSA names of its batch number, first column and the panel of B it reads.

    ``ahead`` points to what the next panel will be made of; each tile prefetches a share of it,
    ``ahead_step`` bytes a step of k.
    """

    scope: Scope
    batch: str
    column: str
    b: str
    b_step: str
    ahead: str
    ahead_step: str


def panel_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """The phase over (batch, block of rows, panel), panels fastest."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    extents = [*(axis.extent for axis in gemm.batch), code.blocks(), code.panels()]
    with f.items() as item:
        *batch, block, number = f.unflatten(item.index, extents)
        flat = f.text.pure(f"udiv i64 {item.index}, {f.size(code.blocks() * code.panels())}")
        scope = f.scope.inner(dict(zip(gemm.batch, batch, strict=True)))
        panel = _panel(code, f, scope, flat, number)
        first = f.text.pure(f"mul nsw i64 {block}, {plan.block}")
        end = f.text.pure(f"add nsw i64 {first}, {plan.block}")
        end = f.smaller(end, f.size(gemm.m.extent))
        if plan.last == plan.vectors:
            _tiles(code, f, panel, first, end, plan.vectors)
        else:
            last = f.size(code.panels() - 1)
            with f.text.when(f.text.pure(f"icmp ne i64 {number}, {last}")):
                _tiles(code, f, panel, first, end, plan.vectors)
            with f.text.when(f.text.pure(f"icmp eq i64 {number}, {last}")):
                _tiles(code, f, panel, first, end, plan.last)
    work = plan.block * plan.width * max(gemm.k.extent.hint(), 1)
    return f, code.batches() * code.blocks() * code.panels(), float(work)


# ---------------------------------------------------------------- the panel of B


def _panel(code: GemmCode, f: PhaseFunction, scope: Scope, flat: str, number: str) -> _Panel:
    gemm, plan = code.gemm, code.plan
    size = 4 if plan.pairs else plan.dtype.itemsize
    column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
    here = scope.inner({gemm.n: column})
    line = str(plan.width * size)
    if plan.b == "gathered":
        code.scratch_bytes = int(gemm.k.extent) * plan.width * plan.dtype.itemsize
        gather_panel(code, f, scope, column, "%scratch")
        return _Panel(scope, flat, column, "%scratch", line, "%scratch", "0")
    if plan.b == "shared":
        where = f.text.pure(f"mul nsw i64 {flat}, {f.size(code.panels())}")
        where = f.text.pure(f"add nsw i64 {where}, {number}")
        where = f.text.pure(f"mul nsw i64 {where}, {f.size(code.panel_elements())}")
        start = f.text.pure(f"getelementptr i8, ptr %shared, i64 {f.size(code.a_copy_bytes())}")
        b = f.offset(start, where, plan.dtype.itemsize)
        return _Panel(scope, flat, column, b, line, b, "0")
    b = f.address(here, gemm.b, (gemm.k,))
    if plan.b == "packed":
        return _Panel(scope, flat, column, b, line, b, "0")
    if plan.b == "direct":
        return _Panel(scope, flat, column, b, f.step(gemm.b, gemm.k), b, "0")
    return _packed_by_item(code, f, scope, flat, column, b, line)


def _packed_by_item(
    code: GemmCode, f: PhaseFunction, scope: Scope, flat: str, column: str, b: str, line: str
) -> _Panel:
    gemm, plan = code.gemm, code.plan
    routine, along = _packing(code)
    steps, pitch = code.k_steps(f), f.step(gemm.b, along)
    left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {column}")
    count = f.smaller(left, str(plan.width))
    size = 4 if plan.pairs else plan.dtype.itemsize
    panel = int(gemm.k.extent) * plan.width * (2 if plan.pairs else size)
    code.scratch_bytes = panel
    source = b
    if plan.b == "converted":
        code.scratch_bytes = 2 * panel
        source = f.text.pure(f"getelementptr i8, ptr %scratch, i64 {panel}")
        pitch = str(int(gemm.k.extent) * plan.dtype.itemsize)
        convert_columns(code, f, scope, (column, count), source)
    arguments = f"ptr {source}, i64 {pitch}, i64 {steps}, i64 {count}, ptr %scratch"
    f.text.do(f"call void @{code.use(routine)}({arguments})")
    if plan.b != "transposed":
        return _Panel(scope, flat, column, "%scratch", line, b, "0")
    # The next panel's rows of B follow these; the tiles of this one share out their lines.
    tiles = -(-min(int_or(gemm.m.extent, plan.block), plan.block) // plan.rows)
    share = min(64, max(4, -(-plan.width * 4 // tiles)))
    ahead = f.text.pure(f"mul nsw i64 {pitch}, {plan.width}")
    ahead = f.text.pure(f"getelementptr i8, ptr {b}, i64 {ahead}")
    return _Panel(scope, flat, column, "%scratch", line, ahead, str(share))


def _packing(code: GemmCode) -> tuple[Routine, object]:
    """The routine that packs a panel, and the axis whose pitch it is given."""
    gemm, plan = code.gemm, code.plan
    if plan.b in ("transposed", "converted"):
        return transpose_routine(plan.lanes, plan.vectors), gemm.n
    if plan.b == "interleaved":
        return interleave_routine(plan.lanes, plan.vectors), gemm.k
    return copy_routine(gemm.b.dtype, plan.lanes, plan.vectors), gemm.k


def int_or(size: Index, otherwise: int) -> int:
    """A constant size, or ``otherwise`` for a symbolic one."""
    return int(size) if size.is_const else otherwise


# ---------------------------------------------------------------- the tiles of a panel


def _tiles(
    code: GemmCode, f: PhaseFunction, panel: _Panel, first: str, end: str, vectors: int
) -> None:
    """All rows of the block: whole tiles, then what is left."""
    plan, rows = code.plan, code.gemm.m.extent
    left = int(rows) % plan.rows if rows.is_const and int(rows) <= plan.block else 0
    whole = str(int(rows) - left) if left else end
    if whole != "0":
        with f.text.loop(first, whole, step=plan.rows, nonempty=True) as loop:
            count = f.text.pure(f"sub i64 {end}, {loop.index}")
            count = str(plan.rows) if left else f.smaller(count, str(plan.rows))
            _tile(code, f, panel, (loop.index, count), (plan.rows, vectors))
    if left:
        _tile(code, f, panel, (whole, str(left)), (left, vectors))


def _tile(
    code: GemmCode,
    f: PhaseFunction,
    panel: _Panel,
    rows: tuple[str, str],
    shape: tuple[int, int],
) -> None:
    """One tile of ``shape`` (rows, vectors) from row ``rows[0]``; ``rows[1]`` rows are real, the
    others repeat the last row of A and are dropped by the epilogue."""
    gemm, plan = code.gemm, code.plan
    m, count = rows
    tile = Tile(*shape, plan.lanes, plan.dtype, plan.pairs)
    last = f.size(gemm.m.extent - 1)
    wanted = [f.text.pure(f"add nsw i64 {m}, {r}") for r in range(tile.rows)]
    if count != str(tile.rows):
        wanted = [f.smaller(w, last) for w in wanted]
    table = code.row_pointers(f, panel.scope, wanted, panel.batch)
    line = tile.width * plan.dtype.itemsize
    sums = f.text.allocate(tile.rows * line)
    ahead = panel.ahead
    if panel.ahead_step != "0":
        passed = f.text.pure(f"udiv i64 {m}, {plan.rows}")
        passed = f.text.pure(f"mul nsw i64 {passed}, {f.size(gemm.k.extent)}")
        ahead = f.offset(ahead, passed, int(panel.ahead_step))
    arguments = (
        f"ptr {table}, i64 {code.a_step(f)}, ptr {panel.b}, i64 {panel.b_step}, "
        f"i64 {code.k_steps(f)}, ptr {sums}, i64 {line}, ptr {ahead}, i64 {panel.ahead_step}"
    )
    f.text.do(f"call void @{code.use(tile_routine(tile))}({arguments})")
    code.epilogue(f, panel.scope, m, count, panel.column, tile.width, sums)
