"""Panels of few columns: a work item takes some beside one another.

A's rows are read once for all of them and stay near from tile to tile; where K is long, they go
over it part by part, so that what they read of B stays in L2 (docs/decisions/020-gemm-tile.md).
B is laid out in panels, or the item copies each part: a panel of 64 bytes read in place takes a
line of every row, and the rows' pages miss the TLB in every tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitney.kernels.llvm.gemm_panel import (
    Ahead,
    Columns,
    Panel,
    call_tile,
    each_tile,
    held_block,
    shared_lines,
    with_packed_rows,
    with_table,
)
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_plan import LayoutOfA, LayoutOfB
from jitney.kernels.llvm.pack_columns import copy_routine
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.loops.index import Index


@dataclass(frozen=True)
class _Item:
    """One work item: what its panels have in common, the numbers of the first panel and of the one
    past its last, its rows (from, to), and where sums over parts of k lie."""

    panel: Panel
    first: str
    end: str
    rows: tuple[str, str]
    sums: str = ""


def wide_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """The phase over (batch, block of rows, group of panels), groups fastest."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    groups = code.groups()
    held = held_block(f) if plan.a is LayoutOfA.PACKED else ""
    if plan.b is LayoutOfB.COPIED:
        code.scratch_bytes = plan.beside * _panel_bytes(code)
    with f.items() as loop:
        scope, flat, (block, group) = code.item(f, loop.index, code.blocks(), groups)
        rows = code.rows_of(f, block)
        panel = Panel(scope, flat, "", "", "")
        if plan.patches is not None:
            panel = with_table(code, f, panel, plan.patches, rows)
        if plan.a is LayoutOfA.PACKED:
            turn = f.text.pure(f"udiv i64 {loop.index}, {f.size(groups)}")
            panel = with_packed_rows(code, f, panel, rows, (held, turn))
        item = _Item(panel, *code.panels_of(f, group), rows)
        if plan.depth:
            _part_by_part(code, f, item)
        else:
            _part(code, f, item, ("0", code.k_steps(f)))
    work = plan.block * plan.width * plan.beside * max(gemm.k.extent.hint(), 1)
    return f, code.batches() * code.blocks() * groups, float(work)


def _part_by_part(code: GemmCode, f: PhaseFunction, item: _Item) -> None:
    """All parts of k, their sums kept in scratch; then the epilogue of all rows."""
    plan = code.plan
    start = -(-code.scratch_bytes // 64) * 64
    line = plan.beside * plan.width * plan.dtype.itemsize
    code.scratch_bytes = start + (plan.block + plan.rows) * line
    item = replace(item, sums=f.offset("%scratch", str(start), 1))
    extent = f.size(code.gemm.k.extent)
    with f.text.loop("0", extent, step=plan.depth, nonempty=True) as part:
        left = f.text.pure(f"sub i64 {extent}, {part.index}")
        _part(code, f, item, (part.index, f.text.smaller(left, str(plan.depth))))
    first, end = item.rows
    count = f.text.pure(f"sub i64 {end}, {first}")
    _epilogue(code, f, item, (first, count), item.sums)


def _epilogue(
    code: GemmCode, f: PhaseFunction, item: _Item, rows: tuple[str, str], sums: str
) -> None:
    width = code.plan.width
    column = f.text.pure(f"mul nsw i64 {item.first}, {width}")
    code.epilogue(f, item.panel.scope, *rows, column, width * code.plan.beside, sums)


def _part(code: GemmCode, f: PhaseFunction, item: _Item, k: tuple[str, str]) -> None:
    """The products of some steps of ``k`` (first, count): every tile of rows, panel by panel."""
    plan = code.plan
    line = plan.beside * plan.width * plan.dtype.itemsize
    if plan.b is LayoutOfB.COPIED:
        _copy_panels(code, f, item, k)

    def write(rows: tuple[str, str], height: int) -> None:
        if plan.depth:
            within = f.text.pure(f"sub i64 {rows[0]}, {item.rows[0]}")
            sums = f.offset(item.sums, within, line)
        else:
            sums = f.text.allocate(height * line)
        with f.text.loop(item.first, item.end, nonempty=True) as number:
            panel = _panel(code, f, item, number.index, k)
            beside = f.text.pure(f"sub i64 {number.index}, {item.first}")
            out = f.offset(sums, beside, plan.width * plan.dtype.itemsize)
            _tile(code, f, panel, number.index, rows, height, (out, line))
        if not plan.depth:
            _epilogue(code, f, item, rows, sums)

    each_tile(code, f, item.rows, write)


def _tile(
    code: GemmCode,
    f: PhaseFunction,
    panel: Panel,
    number: str,
    rows: tuple[str, str],
    height: int,
    out: tuple[str, int],
) -> None:
    """The tile of one panel; the last panel may have fewer columns."""
    plan = code.plan
    whole, last = Columns(plan.vectors, False), Columns(plan.last, False)
    if whole == last:
        call_tile(code, f, panel, rows, height, whole, out)
        return
    final = f.size(code.panels() - 1)
    with f.text.when(f.text.pure(f"icmp ne i64 {number}, {final}")):
        call_tile(code, f, panel, rows, height, whole, out)
    with f.text.when(f.text.pure(f"icmp eq i64 {number}, {final}")):
        call_tile(code, f, panel, rows, height, last, out)


# ---------------------------------------------------------------- the panels of B


def _panel(code: GemmCode, f: PhaseFunction, item: _Item, number: str, k: tuple[str, str]) -> Panel:
    """Panel ``number`` from step ``k[0]`` on."""
    gemm, plan = code.gemm, code.plan
    line = plan.width * plan.dtype.itemsize
    column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
    if plan.b is LayoutOfB.COPIED:
        beside = f.text.pure(f"sub i64 {number}, {item.first}")
        b = f.offset("%scratch", beside, _panel_bytes(code))
        return replace(item.panel, column=column, b=b, b_step=str(line), k=k)
    b = f.address(item.panel.scope.inner({gemm.n: column}), gemm.b, (gemm.k,))
    here = f.offset(b, k[0], line)
    ahead = _ahead(code, f, b, k)
    return replace(item.panel, column=column, b=here, b_step=str(line), k=k, ahead=ahead)


def _panel_bytes(code: GemmCode) -> int:
    """Bytes of one part of k of a panel that the item packs."""
    plan = code.plan
    return (plan.depth or int(code.gemm.k.extent)) * plan.width * plan.dtype.itemsize


def _copy_panels(code: GemmCode, f: PhaseFunction, item: _Item, k: tuple[str, str]) -> None:
    """Lays the item's panels of B, some steps of ``k`` of them, out at the start of scratch."""
    gemm, plan = code.gemm, code.plan
    column = f.text.pure(f"mul nsw i64 {item.first}, {plan.width}")
    step = f.step(gemm.b, gemm.k)
    b = f.address(item.panel.scope.inner({gemm.n: column}), gemm.b, (gemm.k,))
    skipped = f.text.pure(f"mul nsw i64 {k[0]}, {step}")
    b = f.text.pure(f"getelementptr i8, ptr {b}, i64 {skipped}")
    left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {column}")
    routine = copy_routine(gemm.b.dtype, plan.lanes, plan.vectors, plan.beside)
    arguments = f"ptr {b}, i64 {step}, i64 {k[1]}, i64 {left}, ptr %scratch"
    f.text.do(f"call void @{code.use(routine)}({arguments}, i64 {_panel_bytes(code)})")


def _ahead(code: GemmCode, f: PhaseFunction, b: str, k: tuple[str, str]) -> Ahead:
    """The next part of the panel at ``b``, or the panel that the next item has in its place: the
    tiles share out its lines."""
    plan = code.plan
    line = plan.width * plan.dtype.itemsize
    panels = f.text.pure(f"mul nsw i64 {f.size(code.panel_elements())}, {plan.beside}")
    start = f.offset(b, panels, plan.dtype.itemsize)
    if plan.depth:
        end = f.text.pure(f"add nsw i64 {k[0]}, {k[1]}")
        more = f.text.pure(f"icmp slt i64 {end}, {f.size(code.gemm.k.extent)}")
        start = f.text.pure(f"select i1 {more}, ptr {f.offset(b, end, line)}, ptr {start}")
    return shared_lines(code, f, start, k[1])
