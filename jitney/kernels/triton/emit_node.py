"""The kernels of one node as the models choose them."""

from __future__ import annotations

from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource, join_sources
from jitney.kernels.triton.schedule_gemm import (
    can_tile_gemm,
    schedule_gemm,
    schedule_persistent,
)
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.kernels.triton.short_attention import emit_short_attention
from jitney.loops.ir import Attention, Gemm, LoopNest, Together
from jitney.loops.target import Target


def emit_together(
    group: Together, target: Target, fixed: frozenset[str]
) -> tuple[KernelSource, ...]:
    """One kernel for the group; nests whose grids have more dimensions keep their own."""
    parts = [emit_node(nest, target, fixed, len(group.nests)) for nest in group.nests]
    flat = tuple(p for p in parts if len(p.grid) == 1)
    rest = tuple(p for p in parts if len(p.grid) > 1)
    return (join_sources(group.name, flat), *rest) if len(flat) > 1 else tuple(parts)


def emit_node(
    node: LoopNest | Gemm | Attention, target: Target, fixed: frozenset[str], beside: int = 1
) -> KernelSource:
    """The kernel that the cost models choose."""
    if isinstance(node, LoopNest):
        return emit_nest(node, schedule_nest(node, target), fixed)
    if isinstance(node, Attention):
        return emit_short_attention(node)
    if not can_tile_gemm(node):
        return emit_persistent_gemm(node, schedule_persistent(node, target))
    return emit_gemm(node, schedule_gemm(node, target, beside, split=False))
