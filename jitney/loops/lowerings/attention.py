"""Scaled dot-product attention as one `Attention` template."""

from __future__ import annotations

import math
from typing import Any

import torch

from jitney.loops.index import Axis, Index, floor_div, index
from jitney.loops.ir import Access, Attention
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.expressions import Operand, as_expr
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(
    b: Builder,
    query: StridedTensor,
    key: StridedTensor,
    value: StridedTensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: StridedTensor | None = None,
    scale: Operand | None = None,
) -> tuple[StridedTensor, StridedTensor]:
    """Operands are [batch, heads, length, depth]; results the output and its logsumexp."""
    if dropout_p:
        raise Refused("attention with dropout draws eager's random numbers")
    out, logsumexp = (b.allocate(fake) for fake in b.fake)
    emit_attention(b, query, key, value, out, logsumexp, attn_mask, is_causal, scale)
    return out, logsumexp


@lowers(
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
def attention_on_gpu(
    b: Builder,
    query: StridedTensor,
    key: StridedTensor,
    value: StridedTensor,
    attn_bias: StridedTensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Operand | None = None,
) -> tuple[StridedTensor | None, ...]:
    """As `flash_attention_for_cpu` (``attn_bias`` is added to the scores); results after the
    output serve the backward pass, and are not made: nothing may use them."""
    if dropout_p:
        raise Refused("attention with dropout draws eager's random numbers")
    if any(b.used(result) for result in range(1, len(b.fake))):
        raise Refused("the backward pass needs what the library saves")
    out = b.allocate(b.fake[0])
    emit_attention(b, query, key, value, out, None, attn_bias, is_causal, scale)
    return (out, *[None] * (len(b.fake) - 1))


@lowers(aten._scaled_dot_product_flash_attention.default)
def flash_attention(
    b: Builder,
    query: StridedTensor,
    key: StridedTensor,
    value: StridedTensor,
    *options: Any,
    scale: Operand | None = None,
) -> tuple[StridedTensor | None, ...]:
    """As `attention_on_gpu`, without a mask."""
    return attention_on_gpu(b, query, key, value, None, False, *options, scale=scale)


def emit_attention(
    b: Builder,
    query: StridedTensor,
    key: StridedTensor,
    value: StridedTensor,
    out: StridedTensor,
    logsumexp: StridedTensor | None,
    mask: StridedTensor | None,
    causal: bool,
    scale: Operand | None,
) -> None:
    """Appends the template; grouped queries share the key head ``head // group``."""
    for size in (*query.shape, *key.shape, *value.shape):
        if size.is_const and size.const == 0:
            raise Refused("attention over nothing")
    s, t = Axis("s", query.shape[2]), Axis("t", key.shape[2])
    d, dv = Axis("d", query.shape[3]), Axis("dv", value.shape[3])
    batch, head = Axis("b", query.shape[0]), Axis("h", query.shape[1])
    row = (index(batch), index(head))
    if not (query.shape[3].is_const and value.shape[3].is_const):
        raise Refused("a head size known only at run time")
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[3].const)
    b.nodes.append(
        Attention(
            b.fresh(f"{b.node.name}_attention"),
            (batch, head),
            s,
            t,
            d,
            dv,
            query.access((*row, index(s), index(d))),
            key.access((row[0], _shared_head(head, query, key), index(t), index(d))),
            value.access((row[0], _shared_head(head, query, value), index(t), index(dv))),
            out.access((*row, index(s), index(dv))),
            as_expr(scale, torch.float64 if query.dtype is torch.float64 else torch.float32),
            None if mask is None else _mask_access(mask, query, key, (*row, index(s), index(t))),
            causal,
            logsumexp=logsumexp.access((*row, index(s))) if logsumexp and b.used(1) else None,
            origins=(b.node.name,),
        )
    )


def _shared_head(head: Axis, query: StridedTensor, shared: StridedTensor) -> Index:
    if shared.shape[1] == query.shape[1]:
        return index(head)
    return floor_div(index(head), floor_div(query.shape[1], shared.shape[1]))


def _mask_access(
    mask: StridedTensor, query: StridedTensor, key: StridedTensor, position: tuple[Index, ...]
) -> Access:
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return mask.expand(full).access(position)
