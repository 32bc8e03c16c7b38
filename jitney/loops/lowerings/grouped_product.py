"""Products where each row meets one of several matrices: mixtures of experts.

A library's tiles serve many rows of an expert. Where there are no more rows than experts (a decode
step), the weights are read about once whatever one does. A row reduction over each row's own expert
reads them at the speed of memory, and fuses with what is around it.
"""

from __future__ import annotations

from typing import Any

import torch

from jitney.loops.index import Index, index
from jitney.loops.ir import Store
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import apply, cast, compute_dtype, index_expr, mul
from jitney.loops.lowerings.registry import Refused, lowers, optional_op
from jitney.loops.lowerings.strided import StridedTensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
ALIGNED = 16  # bytes whose multiples eager's kernel takes rows and matrices at


@lowers(optional_op("_grouped_mm"))
def grouped_product(
    b: Builder,
    x: StridedTensor,
    weights: StridedTensor,
    offs: StridedTensor | None = None,
    bias: Any = None,
    out_dtype: torch.dtype | None = None,
) -> StridedTensor:
    """``out[r] = x[r] @ weights[g]`` for rows x [r, k] and weights [g, k, n], where the rows of
    group g end before ``offs[g]``. Rows after the last group are anything, as in eager."""
    if offs is None or (x.ndim, weights.ndim) != (2, 3) or bias is not None:
        raise Refused("products of matrices in groups are the library's")
    if b.target.kind != "cuda":
        raise Refused("a CPU's grouped product is the library's")
    if not all(size.is_const and size.const > 0 for size in (*x.shape, *weights.shape)):
        raise Refused("a grouped product of sizes that are symbols, or of nothing")
    if int(x.shape[0]) > int(weights.shape[0]):
        raise Refused("several rows to an expert: the library's tiles win")
    dtypes = {x.dtype, weights.dtype, out_dtype or x.dtype}
    if len(dtypes) > 1 or x.dtype not in FLOATS or offs.dtype is not torch.int32:
        raise Refused("dtypes that eager is to judge")
    if not (_is_aligned(x) and _is_aligned(weights)):
        raise Refused("eager refuses operands whose rows do not begin at multiples of 16 bytes")
    groups = _group_of_each_row(b, x.shape[0], offs)
    out = b.allocate()
    axes, (row, column) = b.axes(out.shape, strides=out.strides)
    lets, group = b.let_index(groups.load((row,)), weights.shape[0], f"{b.node.name}_group")
    reduced, (k,) = b.axes(x.shape[-1:], "r")
    acc = compute_dtype(x.dtype)
    left, right = x.load((row, k)), weights.load((group, k, column))
    total, value = b.reduce(reduced, "sum", mul(cast(left, acc), cast(right, acc)))
    store = Store(out.buffer, out.at((row, column)), cast(value, out.dtype))
    b.emit(axes, (*lets, total, store))
    return out


def _group_of_each_row(b: Builder, rows: Index, offs: StridedTensor) -> StridedTensor:
    """How many groups end at or before each row."""
    groups = b.allocate_as((rows,), torch.int64)
    axes, (row,) = b.axes(groups.shape)
    over, (g,) = b.axes(offs.shape, "g")
    ended = apply("le", cast(offs.load((g,)), torch.int64), index_expr(row))
    count, value = b.reduce(over, "sum", cast(ended, torch.int64))
    b.emit(axes, (count, Store(groups.buffer, groups.at((row,)), value)))
    return groups


def _is_aligned(matrices: StridedTensor) -> bool:
    """Whether the last two dimensions are a matrix, of either order, that eager takes."""
    step = ALIGNED // matrices.dtype.itemsize
    inner = [s for s in matrices.strides[-2:] if s == index(1)]
    others = [s for s in matrices.strides if s != index(1)]
    return bool(inner) and all(s.is_const and int(s) % step == 0 for s in others)
