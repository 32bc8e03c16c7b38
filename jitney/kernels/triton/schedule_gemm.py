"""Tile shapes for matrix products of few rows, from the shape and the GPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from jitney.kernels.triton.schedule_nest import all_fit_32_bits, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import index
from jitney.loops.ir import Gemm, Let, Store
from jitney.loops.points import points_of
from jitney.loops.simplify_nest import indices
from jitney.loops.target import Target

#: Rows of A from which on the library's own tiles fill the GPU.
MOST_ROWS = 256
#: Multiply-adds above which the library's faster inner loop outweighs its launches.
MOST_WORK = 1 << 30
#: Bytes a multiprocessor gets from the L2 cache in a nanosecond while all of them read.
L2_RATE = 41.0
#: Bytes of shared memory a program of `gemm_persistent` needs.
PERSISTENT_SHARED = 229_408
#: Nanoseconds until a program's first tile has arrived.
START = 1200.0
#: Nanoseconds the kernel that adds up the parts of a split product takes.
ADDING = 2000.0


@dataclass(frozen=True)
class GemmSchedule:
    """One program makes ``m_block`` x ``n_block`` results in steps of ``k_block``; the product is
    split into ``splits`` stretches of k whose sums are added afterwards. ``programs``: 0 for one
    program per tile, else so many walk the tiles (`gemm_persistent`)."""

    m_block: int
    n_block: int
    k_block: int
    num_warps: int = 4
    num_stages: int = 4
    splits: int = 1
    programs: int = 0


def can_tile_gemm(gemm: Gemm) -> Decision:
    """Whether `emit_gemm` serves the product and is likely to beat the library."""
    axes = (*gemm.batch, gemm.m, gemm.n, gemm.k)
    if not all(a.extent.is_const for a in axes):
        return no("its sizes are symbolic")
    suited = _suits_matrix_units(gemm)
    if not suited:
        return suited
    rows, columns, depth = int(gemm.m.extent), int(gemm.n.extent), int(gemm.k.extent)
    if rows > MOST_ROWS:
        return no(f"{rows} rows: the library's tiles fill the GPU")
    if min(columns, depth) < 16:
        return no("it is too narrow for matrix units")
    if int(points_of(gemm.batch)) * rows * columns * depth > MOST_WORK:
        return no("so much work is the library's")
    if not all_fit_32_bits((gemm.a.index, gemm.b.index, *indices(gemm.epilogue))):
        return no("an operand has more than 2^31 elements")
    return yes("few rows: launches and latency count, not the inner loop")


def _suits_matrix_units(gemm: Gemm) -> Decision:
    if gemm.a_value is not None or gemm.row_prologue:
        return no("its left operand is computed")
    if gemm.a.dtype not in (torch.bfloat16, torch.float16) or gemm.b.dtype != gemm.a.dtype:
        return no("matrix units take bf16 and f16")
    if gemm.acc_dtype != torch.float32:
        return no(f"it accumulates in {gemm.acc_dtype}")
    if any(not isinstance(s, Let | Store) for s in gemm.epilogue):
        return no("its epilogue loops")
    return yes("matrix units take it")


def can_persist(gemm: Gemm, target: Target) -> Decision:
    """Whether `emit_persistent_gemm` serves the product."""
    if target.capability < (9, 0):
        return no("the GPU has no tensor memory descriptors")
    if 0 < target.shared_memory < PERSISTENT_SHARED:
        return no("its tiles need more shared memory")
    if gemm.batch or not all(a.extent.is_const for a in (gemm.m, gemm.n, gemm.k)):
        return no("it has a batch, or symbolic sizes")
    suited = _suits_matrix_units(gemm)
    if not suited:
        return suited
    for access, axis in ((gemm.a, gemm.m), (gemm.b, gemm.n)):
        step, stride = (access.index.coefficient(x) for x in (gemm.k, axis))
        start = access.index.substitute({axis: index(0), gemm.k: index(0)})
        if step != index(1) or stride is None or not stride.is_const or not start.is_const:
            return no("an operand is not contiguous along the reduced axis")
        if stride.const % 8 or start.const % 8 or stride.const <= 0:
            return no("rows of an operand are not aligned to 16 bytes")
    if not all_fit_32_bits(indices(gemm.epilogue)):
        return no("its result has more than 2^31 elements")
    return yes("both operands are rows that descriptors can fetch")


def schedule_persistent(gemm: Gemm, target: Target) -> GemmSchedule:
    """The best tiles measured at BERT's and ViT's shapes (docs/decisions/025-gpu-many-rows.md)."""
    block = 256 if int(gemm.n.extent) >= 256 else 128
    return GemmSchedule(128, block, 64, 8, 4, 1, target.multiprocessors)


def schedule_gemm(gemm: Gemm, target: Target, beside: int = 1, split: bool = True) -> GemmSchedule:
    """The cheapest tiles by `_nanoseconds`. ``beside``: like products in the same launch."""
    alike = int(points_of(gemm.batch)) * beside
    return _cheapest(_shape(gemm), gemm.a.dtype.itemsize, target.multiprocessors, alike, split)


def candidates(gemm: Gemm) -> Iterator[GemmSchedule]:
    """Every schedule worth measuring."""
    return _candidates(*_shape(gemm))


def tiles(gemm: Gemm, schedule: GemmSchedule) -> tuple[int, int]:
    """Tiles along m and along n."""
    rows, columns, _ = _shape(gemm)
    return -(-rows // schedule.m_block), -(-columns // schedule.n_block)


def _shape(gemm: Gemm) -> tuple[int, int, int]:
    return int(gemm.m.extent), int(gemm.n.extent), int(gemm.k.extent)


@lru_cache(maxsize=4096)
def _cheapest(
    shape: tuple[int, int, int], itemsize: int, multiprocessors: int, alike: int, split: bool
) -> GemmSchedule:
    """``alike``: products in the launch. (Layers ask the same again and again.)"""

    def cost(option: GemmSchedule) -> float:
        return _nanoseconds(shape, itemsize, multiprocessors, alike, option)

    return min((o for o in _candidates(*shape) if split or o.splits == 1), key=cost)


def _candidates(rows: int, columns: int, depth: int) -> Iterator[GemmSchedule]:
    for m_block in (16, 32, 64, 128):
        if m_block > max(16, power_of_two(rows)):
            continue
        for n_block in (32, 64, 128):
            if n_block > max(32, power_of_two(columns)):
                continue
            for splits in (1, 2, 3, 4, 6, 8):
                if splits > 1 and (depth % (64 * splits) or depth // splits < 256):
                    continue
                k_block = 128 if m_block + n_block <= 96 else 64
                k_block = max(16, min(k_block, power_of_two(depth // splits)))
                warps = 8 if m_block * n_block >= 128 * 128 else 4
                yield GemmSchedule(m_block, n_block, k_block, warps, 4, splits)


def _nanoseconds(
    shape: tuple[int, int, int],
    itemsize: int,
    multiprocessors: int,
    alike: int,
    option: GemmSchedule,
) -> float:
    """Each program reads its rows of A and columns of B from the L2 cache; programs of one
    multiprocessor share what it gets."""
    rows, columns, depth = shape
    down, across = -(-rows // option.m_block), -(-columns // option.n_block)
    turns = -(-down * across * option.splits * alike // max(multiprocessors, 1))
    read = (option.m_block + option.n_block) * (depth // option.splits) * itemsize / L2_RATE
    parts = option.splits * rows * columns * 8 / 4000
    return START + turns * read + (ADDING + parts if option.splits > 1 else 0)
