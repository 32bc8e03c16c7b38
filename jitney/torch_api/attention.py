"""The kinds of attention kernels that a program allows for a scope, and the one kernel that is all
of `nn.MultiheadAttention`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import attention
from torch.nn import functional as F


@contextmanager
def attention_kinds(backends: Any, set_priority: bool = False) -> Iterator[dict[Any, Any]]:
    """What `torch.nn.attention.sdpa_kernel` does with torch's settings; newer versions also keep
    for torch's own compiler, in a context variable, whether an order was asked for."""
    if not isinstance(backends, list):
        backends = [backends]
    kinds = list(dict.fromkeys(backends))
    before = attention._cur_sdpa_kernel_backends(with_priority=set_priority)
    try:
        attention._sdpa_kernel(kinds, set_priority)
        yield {}
    finally:
        attention._sdpa_kernel(before, set_priority)


def is_enum_of_c(cls: type) -> bool:
    """Whether it is an enumeration that pybind11 made, as `SDPBackend` is: its members never
    change."""
    return type(cls).__name__ == "pybind11_type" and "__members__" in cls.__dict__


#: What `nn.MultiheadAttention` calls in evaluation, without gradients.
NATIVE_ATTENTION = torch._native_multi_head_attention


def attend_to_itself(
    x: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`NATIVE_ATTENTION` as the module writes it out otherwise: ``x`` (batch, length, embed_dim) is
    ``key`` and ``value``, too; the result lies in rows. ``mask`` hides keys where it is not 0:
    (batch, length) if ``mask_type`` is 1, else (length, length) or (batch, heads, length, length).
    A row for which all keys are hidden is NaN."""
    x = x.transpose(0, 1)
    padding = hidden = alone = None
    if mask is not None:
        mask = mask.bool()
        alone = mask.all(-1, keepdim=True)
        if mask_type == 1:
            padding, alone = mask, alone.unsqueeze(-1)
        elif mask.dim() == 4:
            hidden, alone = mask.flatten(0, 1), alone.any(1)
        else:
            hidden = mask
    out, weights = F.multi_head_attention_forward(
        x, x, x, embed_dim, heads, weight, bias, None, None, False, 0.0, out_weight, out_bias,
        training=False, key_padding_mask=padding, need_weights=need_weights, attn_mask=hidden,
        average_attn_weights=average_attn_weights,
    )  # fmt: skip
    out = out.transpose(0, 1).contiguous()
    return out if alone is None else out.masked_fill(alone, torch.nan), weights
