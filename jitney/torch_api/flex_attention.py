"""`torch.nn.attention.flex_attention` as ordinary operations: capture interprets these programs in
the place of torch's, whose kernels only its own compiler makes.

Masks and scores are functions of one position; ``torch.vmap`` takes them over all. Where one reads
a table at a position (``table[q_idx]``), which is a tensor, capture records a gather
(`call_of_positions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

# Torch's module is imported by those who need it: that takes as long as a small compile.

Tensor = torch.Tensor


def attend(
    op: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Any,
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """(results, log2 of each row's sum of exponentials, its largest score over log(2)); of the
    mask only its function is asked. Rows of which it leaves nothing give zeros."""
    kind = query.device.type
    mods = score_mod, score_buffers, block_mask[-1], mask_buffers
    if not torch.is_autocast_enabled(kind):
        return _attend(query, key, value, scale, *mods)
    dtype = torch.get_autocast_dtype(kind)
    q, k, v = [x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value)]
    with torch.autocast(kind, enabled=False):
        return _attend(q, k, v, scale, *mods)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    score_mod: Any,
    score_buffers: tuple[Any, ...],
    mask_mod: Any,
    mask_buffers: tuple[Any, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    from torch.nn.attention.flex_attention import _identity, noop_mask

    key, value = _for_each_query(key, query), _for_each_query(value, query)
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(exact) @ key.to(exact).transpose(-2, -1) * scale
    places = positions_of(scores)
    if score_mod is not _identity:
        of_scores = over_positions(score_mod, (0,), len(score_buffers))
        scores = of_scores(scores, *places, *score_buffers).to(exact)
    mask = None
    if mask_mod is not noop_mask:
        mask = over_positions(mask_mod, (), len(mask_buffers))(*places, *mask_buffers)
        scores = torch.where(mask, scores, -math.inf)
    sums, largest = scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)
    if score_mod is not _identity:
        result = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
        return _laid_out_like(query, result), sums, largest
    # The scores are mostly asked for by nobody then. Of a row without keys torch's kernels make
    # one thing or another: it is given all keys first, and becomes zeros.
    empty = None if mask is None else ~mask.any(-1, keepdim=True)
    seen = None if mask is None else mask | empty
    result = F.scaled_dot_product_attention(query, key, value, seen, scale=scale)
    return _laid_out_like(query, result, empty), sums, largest


def _for_each_query(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each head and row of the query's, which may share them."""
    groups = query.size(1) // x.size(1)
    if groups > 1:
        x = x.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)
    return x if x.size(0) == query.size(0) else x.expand(query.size(0), -1, -1, -1)


def _laid_out_like(query: Tensor, result: Tensor, empty: Tensor | None = None) -> Tensor:
    """``result``, zero where rows are ``empty``, whose dimensions lie in the order of ``query``'s;
    the last one without gaps."""
    order = sorted(range(3), key=query.stride)[::-1]
    back = [order.index(dim) for dim in range(3)]
    result = result.permute(*order, 3)
    if not result.is_contiguous():
        result = result.contiguous()
    if empty is not None:
        result = result.masked_fill(empty.permute(*order, 3), 0)
    return result.permute(*back, 3)


def create_mask(mod_fn: Any, B: Any, H: Any, Q_LEN: int, KV_LEN: int, device: Any = None) -> Tensor:
    """Where a function of positions, or of scores and positions, leaves something (bool, B x H x
    Q_LEN x KV_LEN)."""
    from torch.nn.attention import flex_attention as flex

    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    zeros = torch.zeros(B or 1, H or 1, Q_LEN, KV_LEN, device=device)
    if flex._get_mod_type(mod_fn) == flex._ModificationType.SCORE_MOD:
        scores = over_positions(mod_fn, (0,))(zeros, *positions_of(zeros))
        return ~torch.isneginf(scores)
    mask: Tensor = over_positions(mod_fn, ())(*positions_of(zeros))
    return mask


def positions_of(scores: Tensor) -> list[Tensor]:
    """The positions along each dimension."""
    return [torch.arange(0, size, device=scores.device) for size in scores.shape]


def over_positions(mod: Any, prefix: tuple[int, ...], buffers: int = 0) -> Callable[..., Any]:
    """``mod(*prefix, b, h, q_idx, kv_idx, *buffers)`` over all positions."""
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    def of_positions(*args: Any) -> Any:
        return call_of_positions(mod, *args)

    over: Callable[..., Any] = _vmap_for_bhqkv(of_positions, prefix, (None,) * buffers)
    return over


def call_of_positions(mod: Callable[..., Any], *args: Any) -> Any:
    """``mod(*args)``, inside which capture takes ``table[position]`` for a gather."""
    return mod(*args)
