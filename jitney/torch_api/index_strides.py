"""The strides that eager gives the result of indexing by tensors of integers (``x[rows]``, ``x[:,
i, j]``).

Eager's iterator goes over the indexed tensor, with no step in the dimensions that are indexed, and
over the indices; fake tensors leave the indices out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitney.torch_api.pointwise_strides import iterated
from jitney.torch_api.view_strides import has_examples, lies_in_rows, same, view_strides


def laid_out_chosen(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], out: torch.Tensor
) -> torch.Tensor:
    """``out``, the fake result of ``x[indices]``, with eager's strides: guards say how symbols
    compare. ``indices``: one for a dimension, None where it stays whole."""
    every = [index for index in indices if index is not None]
    masks = any(index.dtype in (torch.bool, torch.uint8) for index in every)
    if masks or all(map(lies_in_rows, (x, *every))) or not has_examples(x, out, *every):
        return out
    if any(same(size, 0) for size in out.shape):
        return out
    sizes = tuple(out.shape)
    strides = iterated(_operands(x, indices, sizes), sizes)
    return out if all(map(same, strides, out.stride())) else out.new_empty_strided(sizes, strides)


def _operands(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], sizes: tuple[Any, ...]
) -> list[tuple[Any, ...]]:
    """Bytes along each dimension of the result: of ``x``, 0 where it is chosen, and of each index,
    which lies behind the dimensions before the first; in front of all where others lie between."""
    places = [d for d, index in enumerate(indices) if index is not None]
    every = [index for index in indices if index is not None]
    shared = torch.broadcast_shapes(*(index.shape for index in every))
    if any(index.shape != shared for index in every):
        every = [index.expand(shared) for index in every]
    if x.is_cuda and any(index.stride() != every[0].stride() for index in every):
        every = [every[0], *(index.contiguous() for index in every[1:])]
    kept = [stride for d, stride in enumerate(x.stride()) if d not in places]
    before = places[0] if places[-1] - places[0] < len(places) else 0
    behind = len(kept) - before
    bytes_ = x.dtype.itemsize
    ours = [stride * bytes_ for stride in kept]
    operands = [(*ours[:before], *(0 for _ in shared), *ours[before:])]
    for index in every:
        seen: Any = [1] * len(sizes)
        if index.dim():
            seen = view_strides(index, [1] * before + [*shared] + [1] * behind)
        widths = [stride * index.dtype.itemsize for stride in seen]
        repeated = [*range(before), *range(before + len(shared), len(sizes))]
        for d in repeated:
            widths[d] = widths[d] if same(sizes[d], 1) else 0
        operands.append(tuple(widths))
    return operands
