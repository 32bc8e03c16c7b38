"""Products in matrix registers, several panels of B beside one another.

A register's product takes 16 cycles, two of its operands as long to come from L2: with a panel at a
time both do. Here a work item packs some panels, and 32 rows of A stay in L1 while all of them go
by, part by part of k (docs/decisions/047-matrix-registers.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.gemm_panel import each_tile
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_plan import LayoutOfB
from jitney.kernels.llvm.matrix_tile import STRIP, MatrixTile, matrix_routine
from jitney.kernels.llvm.pack_columns import interleave_routine, transpose_routine
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.loops.index import Index

#: Registers of k a part has at most: 32 rows of A take 32 KiB so.
PART = 16


@dataclass(frozen=True)
class _Item:
    """One work item: the number of its product in the batch, its first panel and the one past its
    last, and where sums lie."""

    scope: Scope
    flat: str
    first: str
    end: str
    sums: str


def matrix_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """The phase over (batch, block of rows, group of panels), groups fastest."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    groups = code.groups()
    packed = 0 if plan.b is LayoutOfB.PACKED else plan.beside * _panel_bytes(code)
    code.scratch_bytes = packed + plan.rows * _line(code)
    with f.items() as loop:
        scope, flat, (block, group) = code.item(f, loop.index, code.blocks(), groups)
        panels = code.panels_of(f, group)
        item = _Item(scope, flat, *panels, f.offset("%scratch", str(packed), 1))
        if plan.b is not LayoutOfB.PACKED:
            _pack(code, f, item)

        def write(rows: tuple[str, str], height: int, item: _Item = item) -> None:
            _tile(code, f, item, rows, height)

        each_tile(code, f, code.rows_of(f, block), write)
    work = plan.block * plan.width * plan.beside * max(gemm.k.extent.hint(), 1)
    return f, code.batches() * code.blocks() * groups, float(work)


def _panel_bytes(code: GemmCode) -> int:
    return int(code.gemm.k.extent) * code.plan.width * 2


def _line(code: GemmCode) -> int:
    """Bytes of a row of sums of all panels of an item."""
    return code.plan.beside * code.plan.width * 4


def _pack(code: GemmCode, f: PhaseFunction, item: _Item) -> None:
    """Lays the item's panels out at the start of scratch."""
    gemm, plan = code.gemm, code.plan
    steps, columns = code.k_steps(f), f.size(gemm.n.extent)
    if plan.b is LayoutOfB.INTERLEAVED:
        b, left = _columns_from(code, f, item, item.first, columns)
        routine = interleave_routine(plan.lanes, plan.vectors, panels=plan.beside)
        arguments = f"ptr {b}, i64 {f.step(gemm.b, gemm.k)}, i64 {steps}, i64 {left}, ptr %scratch"
        f.text.do(f"call void @{code.use(routine)}({arguments}, i64 {_panel_bytes(code)})")
        return
    routine = transpose_routine(plan.lanes, plan.vectors)
    with f.text.loop(item.first, item.end, nonempty=True) as panel:
        b, left = _columns_from(code, f, item, panel.index, columns)
        count = f.text.smaller(left, str(plan.width))
        out = _packed_panel(code, f, item, panel.index)
        arguments = f"ptr {b}, i64 {f.step(gemm.b, gemm.n)}, i64 {steps}, i64 {count}, ptr {out}"
        f.text.do(f"call void @{code.use(routine)}({arguments})")


def _columns_from(
    code: GemmCode, f: PhaseFunction, item: _Item, panel: str, columns: str
) -> tuple[str, str]:
    """B from a panel's first column on, and how many columns are left from there."""
    column = f.text.pure(f"mul nsw i64 {panel}, {code.plan.width}")
    b = f.address(item.scope.inner({code.gemm.n: column}), code.gemm.b, (code.gemm.k,))
    return b, f.text.pure(f"sub i64 {columns}, {column}")


def _packed_panel(code: GemmCode, f: PhaseFunction, item: _Item, panel: str) -> str:
    beside = f.text.pure(f"sub i64 {panel}, {item.first}")
    return f.offset("%scratch", beside, _panel_bytes(code))


def _tile(
    code: GemmCode, f: PhaseFunction, item: _Item, rows: tuple[str, str], height: int
) -> None:
    """The sums of some rows and all panels, and their epilogue."""
    pairs = int(code.gemm.k.extent) // 2
    whole, rest = divmod(pairs, STRIP)
    parts = max(-(-whole // PART), 1)
    each = -(-whole // parts)
    strips = -(-height // STRIP)

    def part(before: str, steps: int, rest: int, continued: bool) -> None:
        tile = MatrixTile(strips, code.plan.vectors, rest, continued)
        with f.text.loop(item.first, item.end, nonempty=True) as panel:
            _panel(code, f, item, tile, rows, panel.index, (before, steps))

    last = (parts - 1) * each
    if parts > 1:
        part("0", each, 0, False)
    if parts > 2:
        with f.text.loop(str(each), str(last), step=each, nonempty=True) as between:
            part(between.index, each, 0, True)
    part(str(last), whole - last, rest, parts > 1)
    column = f.text.pure(f"mul nsw i64 {item.first}, {code.plan.width}")
    width = code.plan.width * code.plan.beside
    code.epilogue(f, item.scope, *rows, column, width, item.sums)


def _panel(
    code: GemmCode,
    f: PhaseFunction,
    item: _Item,
    tile: MatrixTile,
    rows: tuple[str, str],
    panel: str,
    part: tuple[str, int],
) -> None:
    """The products of one panel and a part of k: registers before it, and how many it has."""
    (m, count), (before, steps) = rows, part
    line = code.plan.width * 4
    a = code.row(f, item.scope, m, item.flat, "")
    a = f.offset(a, before, 64)
    if code.plan.b is LayoutOfB.PACKED:
        b = _columns_from(code, f, item, panel, "0")[0]
    else:
        b = _packed_panel(code, f, item, panel)
    b = f.offset(b, before, STRIP * line)
    beside = f.text.pure(f"sub i64 {panel}, {item.first}")
    out = f.offset(item.sums, beside, line)
    operands = f"ptr {a}, i64 {code.a_pitch(f)}, i64 {count}, ptr {b}, i64 {line}, i64 {steps}"
    result = f"ptr {out}, i64 {_line(code)}, ptr {b}, i64 0"
    f.text.do(f"call void @{code.use(matrix_routine(tile))}({operands}, {result})")
