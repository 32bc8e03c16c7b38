"""The kernels a node may become: the model's choice first, then its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.schedule_gemm import (
    can_tile_gemm,
    candidates,
    schedule_gemm,
    schedule_persistent,
)
from jitney.kernels.triton.schedule_nest import Schedule, schedule_nest, widest_row
from jitney.kernels.triton.short_attention import emit_short_attention
from jitney.loops.ir import Attention, Gemm, LoopNest
from jitney.loops.target import Target

#: Elements of a tile that registers hold.
MOST_ELEMENTS = 1 << 15
#: Tiles of attention besides the model's.
ATTENTION_TILES = (
    (64, 64, 4, 3),
    (64, 32, 4, 3),
    (128, 32, 4, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 3),
    (128, 128, 8, 2),
)

Variants = tuple[tuple[KernelSource, ...], ...]


def node_variants(
    node: LoopNest | Gemm | Attention, target: Target, fixed: frozenset[str]
) -> Variants:
    """All that a node may become."""
    if isinstance(node, LoopNest):
        return nest_variants(node, target, fixed)
    return gemm_variants(node, target) if isinstance(node, Gemm) else attention_variants(node)


def nest_variants(nest: LoopNest, target: Target, fixed: frozenset[str]) -> Variants:
    """Other blocks and warps than `schedule_nest`'s."""
    options = around(schedule_nest(nest, target), widest_row(nest.body) or 1)
    return _distinct([emit_nest(nest, option, fixed) for option in options])


def gemm_variants(gemm: Gemm, target: Target) -> Variants:
    """Other tiles of a product."""
    if not can_tile_gemm(gemm):
        first = schedule_persistent(gemm, target)
        narrow = replace(first, n_block=128)
        return _distinct([emit_persistent_gemm(gemm, s) for s in (first, narrow)])
    options = [schedule_gemm(gemm, target, split=False)]
    options += [option for option in candidates(gemm) if option.splits == 1]
    return _distinct([emit_gemm(gemm, option) for option in options])


def attention_variants(node: Attention) -> Variants:
    """Other tiles of attention over a short sequence."""
    others = [emit_short_attention(node, tiles) for tiles in ATTENTION_TILES]
    return _distinct([emit_short_attention(node), *others])


def around(schedule: Schedule, width: int) -> Iterator[Schedule]:
    """The schedule, and those a step or two from it."""
    yield schedule
    looped = width > schedule.row_limit
    row = schedule.r_block if looped else width
    for warps in (schedule.num_warps // 2, schedule.num_warps, schedule.num_warps * 2):
        for x_block in (schedule.x_block // 2, schedule.x_block, schedule.x_block * 2):
            for r_block in (row // 2, row, row * 2) if looped and width > 1 else (row,):
                tile = x_block * schedule.y_block * r_block
                steps = (warps != schedule.num_warps) + (x_block != schedule.x_block)
                steps += r_block != row
                if not 1 <= warps <= 16 or x_block < 1 or tile > MOST_ELEMENTS or steps > 2:
                    continue
                if tile >= warps * 32 and r_block > 0:
                    chosen = r_block if looped else schedule.r_block
                    yield replace(schedule, x_block=x_block, r_block=chosen, num_warps=warps)


def _distinct(sources: list[KernelSource]) -> Variants:
    return tuple((source,) for source in {s.key: s for s in sources}.values())
