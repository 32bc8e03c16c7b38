"""The kernels a node may become: the model's choice first, then its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitney.kernels.triton.decode_attention import (
    can_split_decode,
    emit_decode_attention,
    split_count,
)
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.emit_node import emit_together
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource, join_sources
from jitney.kernels.triton.schedule_gemm import (
    can_tile_gemm,
    candidates,
    schedule_gemm,
    schedule_persistent,
)
from jitney.kernels.triton.schedule_nest import (
    Schedule,
    product_schedules,
    schedule_nest,
    widest_row,
)
from jitney.kernels.triton.short_attention import emit_short_attention
from jitney.loops.ir import Attention, Gemm, LoopNest, Together
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

#: Warps to a head of attention over a short cache, besides the model's.
HEAD_WARPS = (4, 8, 16)

Variants = tuple[tuple[KernelSource, ...], ...]


def node_variants(
    node: LoopNest | Gemm | Attention | Together, target: Target, fixed: frozenset[str]
) -> Variants:
    """All kernels that a node may become."""
    if isinstance(node, LoopNest):
        return nest_variants(node, target, fixed)
    if isinstance(node, Together):
        return together_variants(node, target, fixed)
    if isinstance(node, Gemm):
        return gemm_variants(node, target)
    return decode_variants(node, target) if can_split_decode(node) else attention_variants(node)


def nest_variants(nest: LoopNest, target: Target, fixed: frozenset[str]) -> Variants:
    """The schedules with other blocks and warps than `schedule_nest` chooses."""
    options = product_schedules(nest, target)
    options = options or list(around(schedule_nest(nest, target), widest_row(nest.body) or 1))
    return _distinct([emit_nest(nest, option, fixed) for option in options])


def together_variants(group: Together, target: Target, fixed: frozenset[str]) -> Variants:
    """Products of one vector with other blocks; the model's choice of anything else."""
    nests = [n for n in group.nests if isinstance(n, LoopNest)]
    options = [product_schedules(nest, target) for nest in nests]
    if len(nests) < len(group.nests) or not all(options):
        return (emit_together(group, target, fixed),)
    found = []
    for several in zip(*options, strict=True):
        parts = [emit_nest(n, s, fixed) for n, s in zip(nests, several, strict=True)]
        found.append(join_sources(group.name, tuple(parts)))
    return _distinct(found)


def decode_variants(node: Attention, target: Target) -> Variants:
    """Attention of one query: over a short cache other numbers of warps to a head, over a long one
    other numbers of stretches."""
    splits = split_count(node, target.multiprocessors)
    if splits == 1:
        (whole,) = emit_decode_attention(node, 1)
        return _distinct([whole, *(replace(whole, num_warps=n) for n in HEAD_WARPS)])
    numbers = (splits, *(n for n in (splits // 2, splits * 2) if n > 1))
    return tuple(emit_decode_attention(node, n) for n in numbers)


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
