"""Where shapes say that a mask leaves every row of attention something, no row is made zero."""

from __future__ import annotations

import torch
from torch import fx

from jitney.graph.values_without_inputs import value_without_inputs

_ATTENTION = torch.nn.functional.scaled_dot_product_attention


def keep_attention_rows(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` (a torch-level graph, changed in place) with ``where(condition, attention, other)`` as
    the attention, where the condition comes from no input and is true everywhere.

    A program may say so of any mask (`torch_api.flex_attention`), a causal one leaves no row empty.
    """
    chosen = gm.graph.find_nodes(op="call_function", target=torch.where)
    kept = [node for node in chosen if _is_of_attention(node) and _is_true(node.args[0])]
    for node in kept:
        node.replace_all_uses_with(node.args[1])
        gm.graph.erase_node(node)
    if kept:
        gm.graph.lint()
        gm.recompile()
    return gm


def _is_of_attention(node: fx.Node) -> bool:
    """Whether all that becomes of the attention is that some of its rows are replaced."""
    if len(node.args) != 3:
        return False
    attention = node.args[1]
    if not isinstance(attention, fx.Node) or attention.target is not _ATTENTION:
        return False
    before, after = attention.meta.get("example_value"), node.meta.get("example_value")
    if len(attention.users) > 1 or before is None or after is None:
        return False
    facts = [(x.shape, x.stride(), x.dtype) for x in (before, after)]
    return facts[0] == facts[1]


def _is_true(condition: object) -> bool:
    value = value_without_inputs(condition) if isinstance(condition, fx.Node) else None
    return value is not None and bool(value.all())
