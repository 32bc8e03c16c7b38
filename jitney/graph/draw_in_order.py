"""Numbers drawn into memory that is not in rows, in the order in which eager draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from jitney import torch_api

_BERNOULLI = torch.ops.aten.bernoulli.p


def draw_in_order(
    draw: Callable[..., Any], target: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """What eager writes into ``target`` when ``draw(target, *args)`` is drawn in place: into dense
    memory in the order of that memory, or of rows (`torch_api.draws_by_memory`). None where
    ``draw`` itself gives it (memory in rows), or where eager's order is not known."""
    if draw is not _BERNOULLI or target.is_contiguous() or target.device.type != "cpu":
        return None
    order = sorted(range(target.dim()), key=lambda d: (target.stride(d), target.shape[d]))[::-1]
    if not _is_dense(target, order):
        return None
    by_memory = torch_api.draws_by_memory()
    shape = [target.shape[d] for d in order] if by_memory else list(target.shape)
    rows = torch.empty(shape, dtype=target.dtype, device=target.device)
    drawn: torch.Tensor = draw(rows, *args, **kwargs)
    return drawn.permute([order.index(d) for d in range(target.dim())]) if by_memory else drawn


def _is_dense(target: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the dimensions, outermost first, leave no element of the memory between out."""
    step: Any = 1
    for dim in reversed(order):
        if target.shape[dim] != 1 and target.stride(dim) != step:
            return False
        step = step * target.shape[dim]
    return True
