"""The panel style: a work item takes one panel of B's columns and a block of A's rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.gemm_parts import GemmCode
from jitney.kernels.llvm.gemm_patches import Patches, pointer_table
from jitney.kernels.llvm.gemm_plan import LayoutOfA, LayoutOfB, row_offsets
from jitney.kernels.llvm.gemm_tile import Routine, Tile, tile_routine
from jitney.kernels.llvm.matrix_tile import STRIP, MatrixTile, matrix_routine
from jitney.kernels.llvm.native_threads import HELD
from jitney.kernels.llvm.pack_columns import copy_routine, interleave_routine, transpose_routine
from jitney.kernels.llvm.pack_operands import convert_columns, gather_pairs, gather_panel
from jitney.kernels.llvm.pack_rows import pack_rows_routine
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.loops.index import Axis, Index, index


@dataclass(frozen=True)
class Ahead:
    """What the next panel will be read from: each tile prefetches a share of it.

    A tile prefetches one line every ``step`` bytes a step of k, from ``start`` plus ``turn`` bytes
    a tile on, back at the start after ``wrap`` tiles (0: never).
    """

    start: str
    step: str
    turn: str
    wrap: int = 0


@dataclass(frozen=True)
class Panel:
    """One work item: SSA names of its batch number, first column and the panel of B it reads.

    ``b_step`` is the step of the tile's rows of B, or the table of their offsets.
    """

    scope: Scope
    batch: str
    column: str
    b: str
    b_step: str
    ahead: Ahead | None = None
    table: str = ""  # pointers to the pieces of the block's rows
    a: str = ""  # the block's rows, where they are packed
    k: tuple[str, ...] = ()  # the first step of k that ``b`` begins with and how many; all


@dataclass(frozen=True)
class Columns:
    """Vectors of a tile, and whether its last columns may not exist."""

    vectors: int
    masked: bool


def _ends_whole(extent: Index, lanes: int) -> bool:
    return extent.is_const and int(extent) % lanes == 0


def panel_phase(code: GemmCode) -> tuple[PhaseFunction, Index, float]:
    """The phase over (batch, block of rows, panel), panels fastest."""
    gemm, plan = code.gemm, code.plan
    f = code.function()
    held = held_block(f) if plan.a is LayoutOfA.PACKED else ""
    with f.items() as item:
        scope, flat, (block, number) = code.item(f, item.index, code.blocks(), code.panels())
        panel = _panel(code, f, scope, flat, number)
        first, end = code.rows_of(f, block)
        if plan.patches is not None:
            panel = with_table(code, f, panel, plan.patches, (first, end))
        if plan.a is LayoutOfA.PACKED:
            turn = f.text.pure(f"udiv i64 {item.index}, {f.size(code.panels())}")
            panel = with_packed_rows(code, f, panel, (first, end), (held, turn))
        whole = Columns(plan.vectors, False)
        last = Columns(plan.last, plan.in_place and not _ends_whole(gemm.n.extent, plan.lanes))
        if whole == last:
            _tiles(code, f, panel, first, end, whole)
        elif code.panels() == index(1):
            _tiles(code, f, panel, first, end, last)
        else:
            final = f.size(code.panels() - 1)
            with f.text.when(f.text.pure(f"icmp ne i64 {number}, {final}")):
                _tiles(code, f, panel, first, end, whole)
            with f.text.when(f.text.pure(f"icmp eq i64 {number}, {final}")):
                _tiles(code, f, panel, first, end, last)
    work = plan.block * plan.width * max(gemm.k.extent.hint(), 1)
    return f, code.batches() * code.blocks() * code.panels(), float(work)


# ---------------------------------------------------------------- the panel of B


def _panel(code: GemmCode, f: PhaseFunction, scope: Scope, flat: str, number: str) -> Panel:
    gemm, plan = code.gemm, code.plan
    size = 4 if plan.pairs else plan.dtype.itemsize
    column = f.text.pure(f"mul nsw i64 {number}, {plan.width}")
    here = scope.inner({gemm.n: column})
    line = str(plan.width * size)
    if plan.b is LayoutOfB.GATHERED:
        code.scratch_bytes = int(gemm.k.extent) * plan.width * plan.a_dtype.itemsize
        gather = gather_pairs if plan.pairs else gather_panel
        gather(code, f, scope, column, "%scratch")
        return Panel(scope, flat, column, "%scratch", line)
    if plan.b is LayoutOfB.SHARED:
        where = f.text.pure(f"mul nsw i64 {flat}, {f.size(code.panels())}")
        where = f.text.pure(f"add nsw i64 {where}, {number}")
        where = f.text.pure(f"mul nsw i64 {where}, {f.size(code.panel_elements())}")
        start = f.text.pure(f"getelementptr i8, ptr %shared, i64 {f.size(code.a_copy_bytes())}")
        b = f.offset(start, where, plan.dtype.itemsize)
        return Panel(scope, flat, column, b, line)
    b = f.address(here, gemm.b, (gemm.k,))
    match plan.b:
        case LayoutOfB.PACKED:
            following = f.offset(b, f.size(code.panel_elements()), plan.a_dtype.itemsize)
            ahead = shared_lines(code, f, following, code.k_steps(f))
            return Panel(scope, flat, column, b, line, ahead)
        case LayoutOfB.INDEXED:
            return Panel(scope, flat, column, b, _offset_table(code, f))
        case LayoutOfB.DIRECT:
            return Panel(scope, flat, column, b, f.step(gemm.b, gemm.k), _beside(code, f, b))
        case _:
            return _packed_by_item(code, f, scope, flat, column, b, line)


def _offset_table(code: GemmCode, f: PhaseFunction) -> str:
    """A constant of the module: bytes to each row of B."""
    offsets = row_offsets(code.gemm)
    assert offsets is not None
    values = ", ".join(f"i64 {x}" for x in offsets.tolist())
    name = f"@jitney_offsets_{hashlib.sha256(values.encode()).hexdigest()[:20]}"
    kind = f"[{len(offsets)} x i64]"
    f.text.declare(f"{name} = private unnamed_addr constant {kind} [{values}], align 64")
    return name


def _packed_by_item(
    code: GemmCode, f: PhaseFunction, scope: Scope, flat: str, column: str, b: str, line: str
) -> Panel:
    gemm, plan = code.gemm, code.plan
    routine, along = _packing(code)
    steps = code.k_steps(f)
    pitch = f"i64 {f.step(gemm.b, along)}" if along is not None else f"ptr {_offset_table(code, f)}"
    left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {column}")
    count = f.text.smaller(left, str(plan.width))
    size = 4 if plan.pairs else plan.dtype.itemsize
    panel = int(gemm.k.extent) * plan.width * (2 if plan.pairs else size)
    code.scratch_bytes = panel
    source = b
    if plan.b is LayoutOfB.CONVERTED:
        code.scratch_bytes = 2 * panel
        source = f.text.pure(f"getelementptr i8, ptr %scratch, i64 {panel}")
        pitch = f"i64 {int(gemm.k.extent) * plan.dtype.itemsize}"
        convert_columns(code, f, scope, (column, count), source)
    arguments = f"ptr {source}, {pitch}, i64 {steps}, i64 {count}, ptr %scratch"
    f.text.do(f"call void @{code.use(routine)}({arguments})")
    ahead = None
    if plan.b is LayoutOfB.COPIED:
        ahead = _beside(code, f, b)
    elif plan.b is LayoutOfB.TRANSPOSED:
        rows = f.text.pure(f"mul nsw {pitch}, {plan.width}")
        following = f.text.pure(f"getelementptr i8, ptr {b}, i64 {rows}")
        ahead = shared_lines(code, f, following, steps)
    return Panel(scope, flat, column, "%scratch", line, ahead)


def shared_lines(code: GemmCode, f: PhaseFunction, start: str, steps: str) -> Ahead:
    """The bytes from ``start`` on that a panel of so many ``steps`` is made of: every tile of the
    block prefetches its share."""
    plan = code.plan
    tiles = -(-min(int_or(code.gemm.m.extent, plan.block), plan.block) // plan.rows)
    line = plan.width * (4 if plan.pairs else plan.dtype.itemsize)
    share = min(64, max(4, -(-line // tiles)))
    return Ahead(start, str(share), f.text.pure(f"mul nsw i64 {steps}, {share}"))


def _beside(code: GemmCode, f: PhaseFunction, b: str) -> Ahead:
    """The columns after a panel of B with contiguous columns: a tile takes one line of each row."""
    size = code.plan.width * code.plan.dtype.itemsize
    start = f.text.pure(f"getelementptr i8, ptr {b}, i64 {size}")
    return Ahead(start, f.step(code.gemm.b, code.gemm.k), "64", max(size // 64, 1))


def _packing(code: GemmCode) -> tuple[Routine, Axis | None]:
    """The routine that packs a panel, and the axis whose pitch it is given (None: it is given the
    table of B's rows)."""
    gemm, plan = code.gemm, code.plan
    match plan.b:
        case LayoutOfB.TRANSPOSED | LayoutOfB.CONVERTED:
            return transpose_routine(plan.lanes, plan.vectors), gemm.n
        case LayoutOfB.INTERLEAVED:
            indexed = gemm.b.index.coefficient(gemm.k) is None
            along = None if indexed else gemm.k
            return interleave_routine(plan.lanes, plan.vectors, indexed), along
        case _:
            return copy_routine(gemm.b.dtype, plan.lanes, plan.vectors), gemm.k


def int_or(size: Index, otherwise: int) -> int:
    """A constant size, or ``otherwise`` for a symbolic one."""
    return int(size) if size.is_const else otherwise


def with_table(
    code: GemmCode, f: PhaseFunction, panel: Panel, patches: Patches, rows: tuple[str, str]
) -> Panel:
    """The panel with a table in scratch memory of where the pieces of ``rows`` (from, to) lie;
    as many rows more as a tile may take beyond the last."""
    first, end = rows
    start = -(-code.scratch_bytes // 64) * 64
    table = f.text.pure(f"getelementptr i8, ptr %scratch, i64 {start}")
    count = f.text.pure(f"sub i64 {end}, {first}")
    count = f.text.pure(f"add i64 {count}, {code.plan.rows}")
    pointer_table(f, code.gemm, patches, panel.scope, (first, count), table)
    code.scratch_bytes = start + (code.plan.block + code.plan.rows) * patches.taps * 8
    return replace(panel, table=table)


def held_block(f: PhaseFunction) -> str:
    """Where the number of the block that this thread has packed lies: -1 as the phase begins."""
    return f.text.pure(f"getelementptr i8, ptr %scratch, i64 {HELD}")


def with_packed_rows(
    code: GemmCode,
    f: PhaseFunction,
    panel: Panel,
    rows: tuple[str, str],
    turn: tuple[str, str],
) -> Panel:
    """The panel with ``rows`` (from, to) of A packed in scratch memory. ``turn``: where the number
    of the packed block is kept, and the number of this one; the panels of a block follow one
    another, so that it is packed once."""
    (first, end), (held, number) = rows, turn
    gemm, layout = code.gemm, code.packed_a()
    start = -(-code.scratch_bytes // 64) * 64
    code.scratch_bytes = start + layout.bytes(code.plan.block)
    packed = f.text.pure(f"getelementptr i8, ptr %scratch, i64 {start}")
    before = f.text.emit(f"load i64, ptr {held}, align 8")
    with f.text.when(f.text.emit(f"icmp ne i64 {before}, {number}")):
        a = f.address(panel.scope.inner({gemm.m: first}), gemm.a, (gemm.k,))
        count = f.text.emit(f"sub i64 {end}, {first}")
        arguments = f"ptr {a}, i64 {f.step(gemm.a, gemm.k)}, i64 {count}, ptr {packed}"
        f.text.do(f"call void @{code.use(pack_rows_routine(layout))}({arguments})")
        f.text.do(f"store i64 {number}, ptr {held}, align 8")
    return replace(panel, a=packed)


# ---------------------------------------------------------------- the tiles of a panel


def _tiles(
    code: GemmCode, f: PhaseFunction, panel: Panel, first: str, end: str, columns: Columns
) -> None:
    def write(rows: tuple[str, str], height: int) -> None:
        _tile(code, f, panel, rows, height, columns)

    each_tile(code, f, (first, end), write)


def each_tile(
    code: GemmCode,
    f: PhaseFunction,
    block: tuple[str, str],
    write: Callable[[tuple[str, str], int], None],
) -> None:
    """All rows of the block (from, to): whole tiles, then what is left. ``write`` is given a
    tile's first row, how many of its rows are real, and its height."""
    (first, end), plan, rows = block, code.plan, code.gemm.m.extent
    rest = _rest(int(rows), plan.rows) if rows.is_const and int(rows) <= plan.block else []
    whole = str(int(rows) - sum(rest)) if rest else end
    if whole != "0":
        with f.text.loop(first, whole, step=plan.rows, nonempty=True) as loop:
            count = f.text.pure(f"sub i64 {end}, {loop.index}")
            count = str(plan.rows) if rest else f.text.smaller(count, str(plan.rows))
            write((loop.index, count), plan.rows)
    at = int(whole) if rest else 0
    for height in rest:
        write((str(at), str(height)), height)
        at += height


def _rest(rows: int, height: int) -> list[int]:
    """Heights of the last tiles: one or two rows by themselves would waste the loads of B, so
    the tile before them shares."""
    left = rows % height
    if left in (1, 2) and rows > height:
        return [(height + left + 1) // 2, (height + left) // 2]
    return [left] if left else []


def _tile(
    code: GemmCode,
    f: PhaseFunction,
    panel: Panel,
    rows: tuple[str, str],
    height: int,
    columns: Columns,
) -> None:
    """One tile of ``height`` rows from row ``rows[0]``; ``rows[1]`` rows are real, the others
    repeat the last row of A and are dropped by the epilogue."""
    (m, count), width = rows, columns.vectors * code.plan.lanes
    line = width * code.plan.dtype.itemsize
    sums = f.text.allocate(height * line)
    call_tile(code, f, panel, rows, height, columns, (sums, line))
    code.epilogue(f, panel.scope, m, count, panel.column, width, sums)


def call_tile(
    code: GemmCode,
    f: PhaseFunction,
    panel: Panel,
    rows: tuple[str, str],
    height: int,
    columns: Columns,
    out: tuple[str, int],
) -> None:
    """Writes a tile's sums to ``out``: where, and bytes from one row to the next."""
    gemm, plan = code.gemm, code.plan
    if plan.matrix:
        _call_matrix_tile(code, f, panel, rows, (height, columns.vectors), out)
        return
    tile = Tile(
        height,
        columns.vectors,
        plan.lanes,
        plan.dtype,
        plan.pairs,
        plan.b is LayoutOfB.INDEXED,
        columns.masked,
        plan.patches is not None,
        plan.depth > 0,
    )
    sums, line = out
    a, b, pieces = _operands(code, f, panel, tile, rows)
    arguments = f"{a}, {b}, ptr {sums}, i64 {line}, {_prefetched(code, f, panel, rows[0])}"
    if tile.masked:
        left = f.text.pure(f"sub i64 {f.size(gemm.n.extent)}, {panel.column}")
        arguments += f", i64 {left}"
    if tile.continued:
        pieces += f", i64 {panel.k[0]}"
    f.text.do(f"call void @{code.use(tile_routine(tile))}({arguments}{pieces})")


def _call_matrix_tile(
    code: GemmCode,
    f: PhaseFunction,
    panel: Panel,
    rows: tuple[str, str],
    shape: tuple[int, int],
    out: tuple[str, int],
) -> None:
    """As `call_tile`, in matrix registers; ``shape``: the tile's rows and vectors."""
    (m, count), (sums, line) = rows, out
    pairs = int(code.gemm.k.extent) // 2
    tile = MatrixTile(-(-shape[0] // STRIP), shape[1], pairs % STRIP)
    a = code.row(f, panel.scope, m, panel.batch, panel.a)
    operands = f"ptr {a}, i64 {code.a_pitch(f)}, i64 {count}, ptr {panel.b}, i64 {panel.b_step}"
    result = f"ptr {sums}, i64 {line}, {_prefetched(code, f, panel, m)}"
    arguments = f"{operands}, i64 {pairs // STRIP}, {result}"
    f.text.do(f"call void @{code.use(matrix_routine(tile))}({arguments})")


def _operands(
    code: GemmCode, f: PhaseFunction, panel: Panel, tile: Tile, rows: tuple[str, str]
) -> tuple[str, str, str]:
    """A tile's arguments for A, for B and k, and at the end for the pieces of A."""
    gemm, plan = code.gemm, code.plan
    m, count = rows
    step, patches = panel.b_step, plan.patches
    if patches is not None:
        within = f.text.pure(f"urem i64 {m}, {plan.block}")
        table = f.offset(panel.table, within, 8 * patches.taps)
        along, across = (1, patches.run) if patches.outer else (patches.taps, 1)
        steps = [f.text.pure(f"mul i64 {step}, {by}") for by in (along, across)]
        a = f"ptr {table}, i64 {patches.step * gemm.a.dtype.itemsize}"
        b = f"ptr {panel.b}, i64 {steps[0]}, i64 {patches.run}"
        return a, b, f", i64 {patches.taps}, i64 {steps[1]}"
    wanted = [f.text.pure(f"add nsw i64 {m}, {r}") for r in range(tile.rows)]
    if count != str(tile.rows):
        last = f.size(gemm.m.extent - 1)
        wanted = [f.text.smaller(w, last) for w in wanted]
    first = panel.k[0] if panel.k else "0"
    table = code.row_pointers(f, panel.scope, wanted, panel.batch, panel.a, first)
    length = panel.k[1] if panel.k else code.k_steps(f)
    a = f"ptr {table}, i64 {code.a_step(f)}"
    kind = "ptr" if tile.indexed else "i64"
    return a, f"ptr {panel.b}, {kind} {step}, i64 {length}", ""


def _prefetched(code: GemmCode, f: PhaseFunction, panel: Panel, m: str) -> str:
    """The arguments ``next`` and ``next_step`` of the tile at row ``m``."""
    ahead = panel.ahead
    if ahead is None:
        return f"ptr {panel.b}, i64 0"
    tile = f.text.pure(f"urem i64 {m}, {code.plan.block}")
    tile = f.text.pure(f"udiv i64 {tile}, {code.plan.rows}")
    if ahead.wrap:
        tile = f.text.pure(f"urem i64 {tile}, {ahead.wrap}")
    moved = f.text.pure(f"mul nsw i64 {tile}, {ahead.turn}")
    start = f.text.pure(f"getelementptr i8, ptr {ahead.start}, i64 {moved}")
    return f"ptr {start}, i64 {ahead.step}"
