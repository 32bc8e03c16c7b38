"""Attention masks that are constants: none or causal, instead of a table of numbers."""

from __future__ import annotations

import torch
from torch import fx

from jitney import torch_api

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


def recognise_masks(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> None:
    """Drops masks that let everything through, and turns lower triangles into ``is_causal``."""
    found: dict[str, str | None] = {}
    for node in graph.nodes:
        if torch_api.op_name(node.target) != _ATTENTION:
            continue
        mask = node.kwargs.get("attn_mask")
        if not isinstance(mask, fx.Node) or mask.op != "get_attr" or _is_causal(node):
            continue
        name = str(mask.target)
        if name not in found:
            with torch_api.dispatch_modes_off():
                found[name] = mask_kind(constants[name])
        _apply(node, found[name])


def _is_causal(node: fx.Node) -> bool:
    return len(node.args) > 4 and bool(node.args[4])


def _apply(node: fx.Node, kind: str | None) -> None:
    if kind is None:
        return
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
    if kind == "causal":
        query, key, value, *rest = node.args
        node.args = (query, key, value, rest[0] if rest else 0.0, True)


def mask_kind(mask: torch.Tensor) -> str | None:
    """What a mask of shape (…, queries, keys) lets through: "all", "causal", or None for anything
    else.

    Boolean masks keep what is true; additive ones must hold 0 and -inf (or the dtype's minimum).
    """
    if mask.dim() < 2 or not (mask.dtype is torch.bool or mask.dtype.is_floating_point):
        return None
    kept = mask
    if mask.dtype is not torch.bool:
        kept = mask == 0
        lowest = torch.finfo(mask.dtype).min
        if not bool((kept | (mask <= lowest)).all()):
            return None
    if bool(kept.all()):
        return "all"
    queries, keys = kept.shape[-2:]
    if queries != keys:
        return None
    behind = torch.ones((queries, keys), dtype=torch.bool, device=kept.device).tril()
    return "causal" if bool((kept == behind).all()) else None
