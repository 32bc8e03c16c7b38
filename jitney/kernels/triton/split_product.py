"""A product split along k: sums of stretches in one launch, their sum in another.

The second is a plain nest, so that it fuses with what reads the result.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from jitney.kernels.triton.epilogues import wide_axes, with_accumulator, without_units
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import Buffer, Expr, Gemm, Load, LoopNest, Op, Ref, Store
from jitney.loops.points import place_among, points_of


def split_product(gemm: Gemm, splits: int, device: torch.device) -> tuple[Gemm, LoopNest, Buffer]:
    """The partial products, the nest that adds them and runs the epilogue, and the buffer
    between. ``splits`` divides the extent of k."""
    length = gemm.k.extent // splits
    chunk = Axis(gemm.k.name + "_chunk", index(splits))
    inner = Axis(gemm.k.name + "_inner", length)
    moved = {gemm.k: index(chunk) * length + inner}
    axes = (*gemm.batch, gemm.m, gemm.n)
    points, place = points_of(axes), place_among(axes)
    dtype = gemm.acc_dtype
    shape, strides = (index(splits), points), (points, index(1))
    sums = Buffer(gemm.name + "_sums", "temp", dtype, device, shape, strides)
    part = replace(
        gemm,
        name=gemm.name + "_chunks",
        batch=(chunk, *gemm.batch),
        k=inner,
        a=replace(gemm.a, index=gemm.a.index.substitute(moved)),
        b=replace(gemm.b, index=gemm.b.index.substitute(moved)),
        epilogue=(Store(sums.name, index(chunk) * points + place, Ref("acc", dtype)),),
    )
    total = _total([Load(sums.name, _chunk_at(c, points, place), dtype) for c in range(splits)])
    body = without_units(tuple(with_accumulator(s, total) for s in gemm.epilogue), axes)
    rest = LoopNest(gemm.name + "_epilogue", wide_axes(axes), body, gemm.origins)
    return part, rest, sums


def _chunk_at(chunk: int, points: Index, place: Index) -> Index:
    return points * chunk + place


def _total(parts: list[Load]) -> Expr:
    """Added in pairs."""
    terms: list[Expr] = list(parts)
    while len(terms) > 1:
        pairs = [Op("add", (a, b), a.dtype) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
    return terms[0]
