"""Where shapes say that a mask leaves every row of attention something, no row is made zero."""

from __future__ import annotations

import torch
from torch import fx

from jitney.graph.values_without_inputs import value_without_inputs

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def keep_attention_rows(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` (a torch-level graph, changed in place) with ``attention.masked_fill(empty, …)`` as
    the attention, where ``empty`` comes from no input and is true nowhere.

    A program may say so of any mask (`torch_api.flex_attention`), a causal one leaves no row empty.
    """
    filled = gm.graph.find_nodes(op="call_method", target="masked_fill")
    kept = [node for node in filled if _is_of_attention(node) and _is_false(node.args[1])]
    for node in kept:
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    if kept:
        gm.graph.lint()
        gm.recompile()
    return gm


def _is_of_attention(node: fx.Node) -> bool:
    """Whether nothing but this, and the order of its dimensions, becomes of an attention."""
    if len(node.args) != 3:
        return False
    given = node.args[0]
    if not isinstance(given, fx.Node) or _layout(given) != _layout(node):
        return False
    while isinstance(given, fx.Node) and len(given.users) == 1:
        if given.target is _ATTENTION:
            return True
        if given.target not in ("permute", "contiguous"):
            return False
        given = given.args[0]
    return False


def _layout(node: fx.Node) -> object:
    fake = node.meta.get("example_value")
    return node if fake is None else (fake.shape, fake.stride(), fake.dtype)


def _is_false(mask: object) -> bool:
    value = value_without_inputs(mask) if isinstance(mask, fx.Node) else None
    return value is not None and not bool(value.any())
