"""Matrix products of one row become the row reductions they are, to be merged and launched so."""

from __future__ import annotations

from dataclasses import replace

import torch

from jitney.kernels.triton.choose_templates import is_row_reduction
from jitney.kernels.triton.epilogues import wide_axes, with_accumulator, without_units
from jitney.kernels.triton.schedule_gemm import can_persist, can_tile_gemm
from jitney.loops.ir import (
    Expr,
    Gemm,
    Load,
    LoopNest,
    LoopProgram,
    Op,
    Reduce,
    Reduction,
    Ref,
)
from jitney.loops.target import Target


def products_as_nests(program: LoopProgram, target: Target) -> LoopProgram:
    """``program`` with every `Gemm` that is a row reduction as a nest; the others stay tiles.

    One that was a row reduction may be none any more: fusion has it read what its operand was
    copied from, which lies otherwise. No tiles serve it, so it becomes a nest all the same.
    """
    nodes = tuple(
        gemm_as_nest(n) if isinstance(n, Gemm) and not _has_tiles(n, target) else n
        for n in program.nodes
    )
    return replace(program, nodes=nodes)


def _has_tiles(gemm: Gemm, target: Target) -> bool:
    if is_row_reduction(gemm):
        return False
    return bool(can_tile_gemm(gemm) or can_persist(gemm, target))


def gemm_as_nest(gemm: Gemm) -> LoopNest:
    """A product as the row reduction it is; the accumulator gets a name of its own."""
    a: Expr = gemm.a_value or Load(gemm.a.buffer, gemm.a.index, gemm.a.dtype)
    b: Expr = Load(gemm.b.buffer, gemm.b.index, gemm.b.dtype)
    product = Op("mul", (_as(a, gemm.acc_dtype), _as(b, gemm.acc_dtype)), gemm.acc_dtype)
    name = gemm.name + "_acc"
    total = Reduce((gemm.k,), (), (Reduction((name,), "sum", product, gemm.acc_dtype),))
    epilogue = tuple(with_accumulator(s, Ref(name, gemm.acc_dtype)) for s in gemm.epilogue)
    axes = (*gemm.batch, gemm.m, gemm.n)
    body = without_units((*gemm.row_prologue, total, *epilogue), axes)
    return LoopNest(gemm.name, wide_axes(axes), body, gemm.origins)


def _as(expr: Expr, dtype: torch.dtype) -> Expr:
    return expr if expr.dtype == dtype else Op("cast", (expr,), dtype)
