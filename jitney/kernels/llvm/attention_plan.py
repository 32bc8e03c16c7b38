"""How attention is run: rows a work item takes, keys a step takes, how operands are reached."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jitney.errors import CompilerBug
from jitney.kernels.llvm.gemm_plan import SKINNY_ROWS, TILE_ROWS
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.matrix_tile import MATRIX_ROWS
from jitney.loops.index import Index, index
from jitney.loops.ir import Access, Attention
from jitney.loops.target import Target

#: Keys whose scores a step holds at once; more are taken step by step with a running maximum.
KEYS = 512


@dataclass(frozen=True)
class AttentionPlan:
    """``rows`` of the query (a multiple of ``tile_rows``) by ``keys`` a step, computed in
    ``dtype`` with vectors of ``lanes``.

    ``k_vectors``: vectors of a panel of keys. ``v_vectors``: vectors of each panel of the output.
    ``q`` "direct" or "copied"; ``k`` "transposed", "pairs" (bfloat16 dot products), "converted"
    (to ``dtype``, then transposed) or "gathered"; ``v`` "direct", "copied" or "pairs".
    ``matrix``: both products in matrix registers (`attention_matrix`), the weights in bfloat16.
    """

    dtype: torch.dtype
    lanes: int
    rows: int
    tile_rows: int
    keys: int
    k_vectors: int
    v_vectors: tuple[int, ...]
    q: str
    k: str
    v: str
    matrix: bool = False

    @property
    def panel(self) -> int:
        """Keys of a panel."""
        return self.k_vectors * self.lanes

    @property
    def pitch(self) -> int:
        """Elements from one row of scores to the next: off powers of two, whole lines."""
        return self.keys + 64 // self.dtype.itemsize

    @property
    def depth(self) -> int:
        """Columns of the output, rounded up to whole vectors."""
        return sum(self.v_vectors) * self.lanes


def plan_attention(node: Attention, isa: Isa, target: Target) -> AttentionPlan:
    """The plan; CompilerBug when the head size is not known at compile time."""
    if not (node.d.extent.is_const and node.dv.extent.is_const):
        raise CompilerBug(f"{node.name}: a head size known only at run time")
    wide = node.q.dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    lanes = isa.lanes(dtype.itemsize * 8)
    most = 4 if isa.masks else 2
    keys = KEYS
    if node.t.extent.is_const:
        keys = min(KEYS, -(-int(node.t.extent) // (most * lanes)) * most * lanes)
    k = _k_mode(node, dtype, isa)
    matrix = k == "pairs" and _on_matrix(node, isa)
    tile_rows, rows = _matrix_rows(node, target) if matrix else _rows(node, target)
    vectors = -(-int(node.dv.extent) // lanes)
    direct = "direct" if _direct_v(node, dtype, lanes) else "copied"
    return AttentionPlan(
        dtype=dtype,
        lanes=lanes,
        rows=rows,
        tile_rows=tile_rows,
        keys=keys,
        k_vectors=most,
        v_vectors=_panels(vectors, most),
        q="direct" if k == "pairs" or _linear(node.q, node, dtype) else "copied",
        k=k,
        v="pairs" if matrix else direct,
        matrix=matrix,
    )


def _on_matrix(node: Attention, isa: Isa) -> bool:
    """Whether to use matrix registers: they can load Q in place and V in pairs of keys, and there
    are many rows."""
    few = node.s.extent.is_const and int(node.s.extent) <= SKINNY_ROWS
    rows = node.q.index.coefficient(node.s) is not None
    one, by_t = node.v.index.coefficient(node.dv), node.v.index.coefficient(node.t)
    pairs = node.v.dtype == torch.bfloat16 and one == index(1) and by_t is not None
    return isa.matrix and not few and rows and pairs


def _matrix_rows(node: Attention, target: Target) -> tuple[int, int]:
    """As `_rows`, in whole tiles of matrix registers."""
    items = -(-node.s.extent.hint() // MATRIX_ROWS)
    for axis in node.batch:
        items *= max(axis.extent.hint(), 1)
    most = 2 if node.causal else 4
    tiles = max(1, min(most, items // (2 * target.cores), -(-node.s.extent.hint() // MATRIX_ROWS)))
    return MATRIX_ROWS, tiles * MATRIX_ROWS


def _rows(node: Attention, target: Target) -> tuple[int, int]:
    """(rows of a tile, rows of a work item): few enough that all cores have work, and for a
    causal mask that whole blocks of keys are skipped."""
    if node.s.extent.is_const and int(node.s.extent) <= TILE_ROWS:
        return int(node.s.extent), int(node.s.extent)
    others = 1
    for axis in node.batch:
        others *= max(axis.extent.hint(), 1)
    length = node.s.extent.hint()
    rows = 48 if node.causal else 96
    while others * -(-length // rows) < 2 * target.cores and rows > 24:
        rows //= 2
    whole = -(-length // TILE_ROWS) * TILE_ROWS
    if node.s.extent.is_const and whole <= 132 and others >= 2 * target.cores and not node.causal:
        rows = whole
    return TILE_ROWS, min(rows, whole) if node.s.extent.is_const else rows


def _panels(vectors: int, most: int) -> tuple[int, ...]:
    """Widths of the output's panels, as even as they come."""
    count = -(-vectors // most)
    return tuple(vectors // count + (i < vectors % count) for i in range(count))


def _linear(access: Access, node: Attention, dtype: torch.dtype) -> bool:
    return access.dtype == dtype and access.index.coefficient(node.d) is not None


def _k_mode(node: Attention, dtype: torch.dtype, isa: Isa) -> str:
    one, by_t = node.k.index.coefficient(node.d), node.k.index.coefficient(node.t)
    rows = one == index(1) and by_t is not None
    halves = node.k.dtype == node.q.dtype == torch.bfloat16
    even = int(node.d.extent) % 2 == 0 and node.q.index.coefficient(node.d) == index(1)
    if isa.bf16 and halves and rows and even:
        return "pairs"
    if dtype != torch.float32:
        return "gathered"
    return "transposed" if rows and node.k.dtype == dtype else "converted"


def _direct_v(node: Attention, dtype: torch.dtype, lanes: int) -> bool:
    one, by_t = node.v.index.coefficient(node.dv), node.v.index.coefficient(node.t)
    whole = int(node.dv.extent) % lanes == 0
    return node.v.dtype == dtype and one == index(1) and by_t is not None and whole


def first_and_last_key(node: Attention) -> tuple[Index | None, Index | None]:
    """For a row s, as an index over the node's s: the first key kept (None: 0) and one past the
    last (None: all)."""
    if not node.causal:
        return None, None
    last = index(node.s) + node.causal_offset + 1
    return (None if node.window is None else last - node.window), last
