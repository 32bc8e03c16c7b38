"""How a GEMM is run: which loop order, which tile, and how its operands reach the tile.

Pure functions of the node, the program's dtypes and the target; every figure behind a threshold
is in docs/decisions/020-gemm-tile.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import torch

from jitney.kernels.llvm.gemm_patches import Patches, patches_of
from jitney.kernels.llvm.gemm_tile import BLOCK
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.matrix_tile import MATRIX_ROWS
from jitney.loops import ir
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, Dim, FloorDiv, Index, Mod, Value, index
from jitney.loops.target import Target

#: Rows of A a block holds when M is larger: it stays in L2 while the panels of B go by.
BLOCK_ROWS = 444
#: A transposed A is packed for at least this many panels of B, a block of this share of L2 each.
FEWEST_PANELS, PACKED_SHARE = 4, 0.5
#: Up to this many rows B is read once, in place; above, packing it pays.
SKINNY_ROWS = 16
TILE_ROWS = 6
#: Bytes of a panel a work item may pack by itself.
LARGEST_PANEL = 4 << 20
#: Bytes of columns of a packed or copied B for a work item, however few the registers hold; where
#: K is long it goes over it in parts, whose panels take this share of L2.
WIDE, DEPTH_SHARE = 256, 0.4
#: The same where registers hold panels of this many bytes already, of a B whose rows a panel cannot
#: read in place: each row is a page of its own, looked up once for all of these.
WIDE_COPY = 1024
#: Rows of A for which a work item copies several panels: each is read once a part for all of them.
WIDE_ROWS = 516
#: For matrix registers: panels of pairs beside one another at most, and the share of L2 they take;
#: the rows of A from which on that pays where B's k is contiguous.
MATRIX_PANELS, MATRIX_SHARE, MANY_ROWS = 8, 0.4, 320
#: Bytes up to which tiles of few columns read such a B in place.
IN_PLACE = 64 << 10


class Style(Enum):
    """What a product goes over: the loops of its main phase."""

    PANEL = "panel"  # tiles over panels of B
    ROW_DOT = "row_dot"  # few rows, B's k contiguous
    STREAM = "stream"  # few rows, B's n contiguous


class LayoutOfA(Enum):
    """Where tiles read A."""

    DIRECT = "direct"  # in place
    PATCHES = "patches"  # in place, in pieces (`GemmPlan.patches`)
    # A block's columns laid out in scratch as tiles read them, by the work item that comes to the
    # block first.
    PACKED = "packed"
    COPIED = "copied"  # converted or computed into shared memory by a phase


class LayoutOfB(Enum):
    """Where tiles read B. What follows SHARED each work item packs into scratch."""

    DIRECT = "direct"  # in place
    INDEXED = "indexed"  # in place, rows found through a table of offsets (`row_offsets`)
    PACKED = "packed"  # laid out once (`packed_index`)
    SHARED = "shared"  # packed into shared memory by a phase
    TRANSPOSED = "transposed"  # from k-contiguous rows
    CONVERTED = "converted"  # the same where the dtype differs
    COPIED = "copied"  # from n-contiguous rows
    INTERLEAVED = "interleaved"  # the same for pairs
    GATHERED = "gathered"  # from any layout


@dataclass(frozen=True)
class GemmPlan:
    """What is decided of a product, which accumulates in ``dtype``.

    ``pairs``: bfloat16 dot products; ``matrix``: in matrix registers. ``block``: rows of A a work
    item takes. ``last``: vectors of the last panel. ``beside``: panels a work item takes (more than
    one only of a packed or copied B, or in matrix registers); ``depth``: steps of k it takes at
    once (0: all).
    """

    style: Style
    dtype: torch.dtype
    lanes: int
    rows: int
    vectors: int
    pairs: bool
    a: LayoutOfA
    b: LayoutOfB
    block: int = 0
    last: int = 0
    patches: Patches | None = None
    beside: int = 1
    depth: int = 0
    matrix: bool = False

    @property
    def a_dtype(self) -> torch.dtype:
        """What a copy of A holds."""
        return torch.bfloat16 if self.pairs else self.dtype

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def in_place(self) -> bool:
        """Whether tiles read B itself, which ends with its last column."""
        return self.b in (LayoutOfB.DIRECT, LayoutOfB.INDEXED)


def can_emit_gemm(gemm: ir.Gemm) -> Decision:
    """Whether the LLVM templates cover this product."""
    if gemm.row_prologue:
        return no("a prologue with statements of its own is a loop nest before the GEMM")
    if gemm.acc_dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return no(f"no tile accumulates in {gemm.acc_dtype}")
    if gemm.k.extent == index(0):
        return no("an empty sum is a fill, not a product")
    for statement in gemm.epilogue:
        if not isinstance(statement, ir.Let | ir.Store):
            return no("the epilogue holds a loop")
    return yes("a register tile covers it")


def plan_gemm(gemm: ir.Gemm, isa: Isa, target: Target) -> GemmPlan:
    """The plan for a GEMM that `can_emit_gemm` allows."""
    lanes, pairs = isa.lanes(gemm.acc_dtype.itemsize * 8), _dots_pairs(gemm, isa)
    vectors, b = _packed_vectors(gemm, lanes, pairs), LayoutOfB.PACKED
    if not vectors:
        vectors = _vectors(gemm.n.extent, lanes, _most_vectors(isa))
        b = _b_mode(gemm, lanes, vectors, pairs, target)
    in_place = _rows_of_pairs(gemm) if pairs else _direct_a(gemm)
    a = LayoutOfA.DIRECT if in_place else LayoutOfA.COPIED
    plan = GemmPlan(Style.PANEL, gemm.acc_dtype, lanes, TILE_ROWS, vectors, pairs, a, b)
    few = _of_few_rows(gemm, plan, target)
    plan, most = (few, BLOCK_ROWS) if few is not None else _in_panels(gemm, plan, isa, target)
    if plan.style is Style.PANEL and pairs and _on_matrix(gemm, plan, isa):
        plan = replace(plan, rows=MATRIX_ROWS, matrix=True)
        plan = replace(plan, beside=_matrix_panels(gemm, plan, target))
    block = _block_rows(gemm, plan, target, most)
    return replace(plan, block=block, last=_last_vectors(gemm.n.extent, lanes, plan.vectors))


def _of_few_rows(gemm: ir.Gemm, plan: GemmPlan, target: Target) -> GemmPlan | None:
    """For a product of few rows that reads B once, where it lies: along k, or along n. None for
    others."""
    if not gemm.m.extent.is_const or int(gemm.m.extent) > SKINNY_ROWS:
        return None
    if plan.b is not LayoutOfB.PACKED and _k_contiguous_floats(gemm):
        a = plan.a if gemm.a.index.coefficient(gemm.k) == index(1) else LayoutOfA.COPIED
        return replace(plan, style=Style.ROW_DOT, vectors=4, a=a, b=LayoutOfB.DIRECT)
    rows, whole = int(gemm.m.extent), _whole_vectors(gemm.n.extent, plan.lanes)
    if rows > TILE_ROWS or plan.pairs or gemm.b.dtype != plan.dtype or not whole:
        return None
    if plan.b not in (LayoutOfB.DIRECT, LayoutOfB.COPIED):
        return None
    vectors = _stream_vectors(gemm, int(gemm.n.extent) // plan.lanes, target)
    return replace(plan, style=Style.STREAM, rows=rows, vectors=vectors, b=LayoutOfB.DIRECT)


def _in_panels(gemm: ir.Gemm, plan: GemmPlan, isa: Isa, target: Target) -> tuple[GemmPlan, int]:
    """How A reaches the tiles over panels of B, and how many panels a work item takes; the most
    rows of A for it."""
    most = BLOCK_ROWS
    if plan.a is LayoutOfA.COPIED and plan.b is not LayoutOfB.INDEXED and not plan.pairs:
        patches = patches_of(gemm)
        plan = plan if patches is None else replace(plan, a=LayoutOfA.PATCHES, patches=patches)
    elif plan.a is LayoutOfA.DIRECT and (rows := _packed_rows(gemm, plan.width, target)):
        plan, most = replace(plan, a=LayoutOfA.PACKED), rows
    plain = plan.b in (LayoutOfB.DIRECT, LayoutOfB.COPIED)
    copyable = plain and plan.patches is None and _spread(gemm)
    if plan.b is not LayoutOfB.PACKED and not copyable:
        return plan, most
    panel = _most_vectors(isa) * isa.bits // 8
    far = plan.b is LayoutOfB.COPIED and panel == WIDE
    beside = _beside(gemm, plan.width, (WIDE_COPY if far else WIDE) // panel)
    if beside == 1:
        return plan, most
    if plan.b is not LayoutOfB.PACKED:
        plan, most = replace(plan, b=LayoutOfB.COPIED), WIDE_ROWS
    line = beside * plan.width * plan.dtype.itemsize
    return replace(plan, beside=beside, depth=_depth(gemm, line, plan.patches, target)), most


def _most_vectors(isa: Isa) -> int:
    """Vectors of a panel for which there are registers."""
    return 4 if isa.masks else 2


def _beside(gemm: ir.Gemm, width: int, most: int) -> int:
    """Panels of ``width`` columns for a work item, up to ``most``, in even shares."""
    if not gemm.n.extent.is_const:
        return most
    panels = -(-int(gemm.n.extent) // width)
    return -(-panels // -(-panels // most))


def _depth(gemm: ir.Gemm, line: int, patches: Patches | None, target: Target) -> int:
    """Steps of k after which a work item's panels, ``line`` bytes a step, have filled their share
    of L2: whole blocks of a tile's sums, in even shares. 0 where all of K fits."""
    if patches is not None or not gemm.k.extent.is_const:
        return 0
    steps, most = int(gemm.k.extent), int(target.l2 * DEPTH_SHARE) // line
    if steps <= most + BLOCK // 2 or most < BLOCK:
        return 0
    return -(-steps // -(-steps // most) // BLOCK) * BLOCK


def _spread(gemm: ir.Gemm) -> bool:
    """Whether B's rows lie on more pages than every tile may look up anew."""
    pitch = gemm.b.index.coefficient(gemm.k)
    if pitch is None or not gemm.k.extent.is_const:
        return False
    return int(gemm.k.extent) * abs(pitch.hint()) * gemm.b.dtype.itemsize > IN_PLACE


def packed_index(n: Axis, k: Axis, width: int, pairs: bool, base: Index | int = 0) -> Index:
    """Where B's element (k, n) lies once laid out in panels of ``width`` columns."""
    column, row = index(n), index(k)
    group = 2 if pairs else 1
    panel = (column // width) * (k.extent * width)
    inside = (row // group) * (width * group) + (column % width) * group + row % group
    return index(base) + panel + inside


def _dots_pairs(gemm: ir.Gemm, isa: Isa) -> bool:
    """Whether bfloat16 pairs can be multiplied: both sides are bfloat16, pairs along k are adjacent
    in A and can be packed in B."""
    if not isa.bf16 or gemm.a.dtype != torch.bfloat16 or gemm.b.dtype != torch.bfloat16:
        return False
    if gemm.acc_dtype != torch.float32:
        return False
    even = gemm.k.extent.is_const and int(gemm.k.extent) % 2 == 0
    if not even or not (_rows_of_pairs(gemm) or isa.matrix and _copies_to_pairs(gemm)):
        return False
    strides = (gemm.b.index.coefficient(gemm.k), gemm.b.index.coefficient(gemm.n))
    if index(1) in strides and None not in strides:
        return True
    return isa.matrix or bool(_packed_vectors(gemm, isa.lanes(32), True))


def _rows_of_pairs(gemm: ir.Gemm) -> bool:
    """Whether A's pairs lie side by side where it is."""
    return gemm.a_value is None and gemm.a.index.coefficient(gemm.k) == index(1)


def _copies_to_pairs(gemm: ir.Gemm) -> bool:
    """Whether a copy of A as bfloat16 holds all of it, and enough columns read the copy."""
    exact = gemm.a_value is None or gemm.a_value.dtype == torch.bfloat16
    rows = gemm.m.extent.bounds()[0]
    return exact and rows is not None and rows > SKINNY_ROWS


def _on_matrix(gemm: ir.Gemm, plan: GemmPlan, isa: Isa) -> bool:
    """Whether matrix registers can load A: its rows must have one pitch."""
    return isa.matrix and (
        plan.a is LayoutOfA.COPIED or gemm.a.index.coefficient(gemm.m) is not None
    )


def _matrix_panels(gemm: ir.Gemm, plan: GemmPlan, target: Target) -> int:
    """Panels of pairs beside one another: their share of L2, every core busy. Few rows that read
    one panel have the next one's lines prefetched, which is worth more."""
    linear = gemm.b.index.coefficient(gemm.k) is not None
    rows = linear and plan.b is LayoutOfB.INTERLEAVED
    if plan.b not in (LayoutOfB.PACKED, LayoutOfB.TRANSPOSED) and not rows:
        return 1
    if plan.b is LayoutOfB.TRANSPOSED and gemm.m.extent.hint() < MANY_ROWS:
        return 1
    panel = int(gemm.k.extent) * plan.width * 2
    items = -(-gemm.n.extent.hint() // plan.width)
    for axis in gemm.batch:
        items *= max(axis.extent.hint(), 1)
    most = min(int(target.l2 * MATRIX_SHARE) // panel, items // (2 * target.cores), MATRIX_PANELS)
    return _beside(gemm, plan.width, max(most, 1))


def _direct_a(gemm: ir.Gemm) -> bool:
    linear = gemm.a.index.coefficient(gemm.k) is not None
    return gemm.a_value is None and gemm.a.dtype == gemm.acc_dtype and linear


def _packed_rows(gemm: ir.Gemm, width: int, target: Target) -> int:
    """Rows of a block of A to lay out first, in whole tiles; 0 where A is better read in place.

    It pays for a transposed A (a step of k reads a few columns of a far row, a line of its own)
    that enough panels of B, ``width`` columns each, read."""
    by_m, by_k = gemm.a.index.coefficient(gemm.m), gemm.a.index.coefficient(gemm.k)
    far = by_m == index(1) and by_k is not None and by_k != index(1)
    if not far or not gemm.k.extent.is_const or gemm.n.extent.hint() < FEWEST_PANELS * width:
        return 0
    tile = int(gemm.k.extent) * gemm.acc_dtype.itemsize * TILE_ROWS
    return min(int(target.l2 * PACKED_SHARE) // tile * TILE_ROWS, BLOCK_ROWS)


def _b_mode(gemm: ir.Gemm, lanes: int, vectors: int, pairs: bool, target: Target) -> LayoutOfB:
    dtype = gemm.acc_dtype
    by_k, by_n = gemm.b.index.coefficient(gemm.k), gemm.b.index.coefficient(gemm.n)
    rows = by_n == index(1) and gemm.b.dtype == dtype
    if not gemm.k.extent.is_const:
        return LayoutOfB.DIRECT if by_k is not None and rows else LayoutOfB.SHARED
    if rows and not pairs and row_offsets(gemm) is not None:
        return LayoutOfB.INDEXED
    panel = int(gemm.k.extent) * vectors * lanes * dtype.itemsize
    anyhow = LayoutOfB.GATHERED if pairs or panel <= LARGEST_PANEL else LayoutOfB.SHARED
    if pairs and by_n == index(1) and (by_k is not None or row_offsets(gemm) is not None):
        return LayoutOfB.INTERLEAVED
    if by_k is None or by_n is None:
        return anyhow
    if pairs:
        return LayoutOfB.TRANSPOSED if by_k == index(1) else anyhow
    if rows:
        near = _near(gemm, by_k, vectors * lanes, target)
        return LayoutOfB.DIRECT if near else LayoutOfB.COPIED
    if by_k == index(1) and dtype == torch.float32:
        return LayoutOfB.TRANSPOSED if gemm.b.dtype == dtype else LayoutOfB.CONVERTED
    return anyhow


def _near(gemm: ir.Gemm, by_k: Index, width: int, target: Target) -> bool:
    """Whether a panel of B, read in place, stays in L2. Its rows must not fall into few sets of the
    cache (a pitch of many powers of two causes that; eight ways are assumed), and must leave a
    quarter to A."""
    if not by_k.is_const:
        return False
    ways, line = 8, 64
    rows, sets = int(gemm.k.extent), max(target.l2 // (line * ways), 1)
    lines = max(-(-width * gemm.b.dtype.itemsize // line), 1)
    pitch = max(int(by_k) * gemm.b.dtype.itemsize // line, 1)
    fits = rows * lines * line <= target.l2 * 3 // 4
    return fits and rows <= ways * (sets // math.gcd(pitch, sets)) * 3 // 4


def row_offsets(gemm: ir.Gemm) -> np.ndarray | None:
    """Bytes from B's first row to each of its rows where those follow no single stride but do not
    depend on the column or the batch (the patches of a convolution); else None."""
    if not gemm.k.extent.is_const or gemm.b.index.coefficient(gemm.k) is not None:
        return None
    others = {a: 0 for a in gemm.b.index.atoms() if isinstance(a, Axis) and a != gemm.k}
    rows = gemm.b.index.substitute(others)
    rest = (gemm.b.index - rows).atoms()
    if gemm.k in rest or any(isinstance(a, Dim | Value) for a in rows.atoms()):
        return None
    places = np.arange(int(gemm.k.extent), dtype=np.int64)

    def at(atom: Any) -> Any:
        return places if atom == gemm.k else 0

    return (np.asarray(rows.evaluate(at)) - rows.evaluate(lambda atom: 0)) * gemm.b.dtype.itemsize


def _packed_vectors(gemm: ir.Gemm, lanes: int, pairs: bool) -> int:
    """Vectors of a panel when B is laid out by `packed_index`, in what a panel holds; else 0."""
    if gemm.b.dtype != (torch.bfloat16 if pairs else gemm.acc_dtype):
        return 0
    if not any(isinstance(a, FloorDiv | Mod) for a in gemm.b.index.atoms()):
        return 0
    rest = gemm.b.index.substitute({gemm.n: 0, gemm.k: 0})
    for vectors in (4, 3, 2, 1):
        if gemm.b.index == packed_index(gemm.n, gemm.k, vectors * lanes, pairs, rest):
            return vectors
    return 0


def _whole_vectors(extent: Index, lanes: int) -> bool:
    return extent.is_const and int(extent) % lanes == 0


def _vectors(n: Index, lanes: int, most: int) -> int:
    """Vectors a panel has: as many as registers allow, fewer where columns would be wasted."""
    if not n.is_const:
        return most
    cost = {}
    for vectors in range(1, most + 1):
        panels, rest = divmod(int(n), vectors * lanes)
        last = -(-rest // lanes)
        # A panel costs its vectors, or the loads of A where those are few.
        cost[vectors] = panels * _panel_cost(vectors) + (_panel_cost(last) if last else 0)
    return min(cost, key=lambda v: (cost[v], -v))


def _panel_cost(vectors: int) -> float:
    return max(vectors + 0.3, 2.0)


def _last_vectors(n: Index, lanes: int, vectors: int) -> int:
    rest = int(n) % (vectors * lanes) if n.is_const else 0
    return -(-rest // lanes) if rest else vectors


def _stream_vectors(gemm: ir.Gemm, vectors: int, target: Target) -> int:
    """Vectors of a stretch of columns: 4 KiB of sums at most, every core busy alike."""
    others = 1
    for axis in gemm.batch:
        others *= max(axis.extent.hint(), 1)
    parts = max(-(-vectors // 64), -(-target.cores // others))
    parts = -(-parts * others // target.cores) * target.cores // others or 1
    return -(-vectors // parts)


def _k_contiguous_floats(gemm: ir.Gemm) -> bool:
    floats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    if gemm.b.dtype not in floats or not gemm.acc_dtype.is_floating_point:
        return False
    return (
        gemm.b.index.coefficient(gemm.k) == index(1)
        and gemm.b.index.coefficient(gemm.n) is not None
        and (gemm.a_value is not None or gemm.a.index.coefficient(gemm.k) is not None)
    )


def _block_rows(gemm: ir.Gemm, plan: GemmPlan, target: Target, most: int) -> int:
    """How many rows a work item takes: a block of A that stays in cache (``most`` rows), fewer
    where threads would idle."""
    width = plan.beside * plan.width
    if not gemm.m.extent.is_const:
        return most
    rows = int(gemm.m.extent)
    blocks = -(-rows // most)
    others = -(-gemm.n.extent.hint() // width)
    for axis in gemm.batch:
        others *= max(axis.extent.hint(), 1)
    while others * blocks < 3 * target.cores and rows // (blocks + 1) >= 4 * plan.rows:
        blocks += 1
    each = -(-rows // blocks)
    return each if blocks == 1 else -(-each // plan.rows) * plan.rows
