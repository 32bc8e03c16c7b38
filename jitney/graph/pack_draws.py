"""What a dropout on a CPU draws, 0 or 1, is kept for the backward pass as a bool: a quarter of a
float's bytes. And it is drawn for a shape, not beside a tensor of that shape that nobody reads.

Eager keeps such numbers as they are; in a checkpointed region it draws them again, where a graph
keeps them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from jitney.graph.checkpoints import checkpoint_of

aten = torch.ops.aten
_DRAWN = (aten.bernoulli.p, aten.bernoulli.default)
_EMPTY = (aten.empty_like.default, aten.empty.memory_format)


def pack_draws(graph: fx.Graph) -> None:
    """Lets all that reads such numbers read them from bools, where the backward pass is among it
    or computes it again."""
    draws = [n for op in _DRAWN for n in graph.find_nodes(op="call_function", target=op)]
    for node in draws:
        if node.meta.get("backward"):  # by a custom backward, where its gradient comes
            continue
        _draw_for_shape(graph, node)
        readers = [user for user in node.users if user.op != "output"]
        if any(user.meta.get("backward") or checkpoint_of(user) is not None for user in readers):
            _keep_as_bool(graph, node, readers)


def _keep_as_bool(graph: fx.Graph, node: fx.Node, readers: list[fx.Node]) -> None:
    value = node.meta["val"]
    with graph.inserting_after(node):
        packed = graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.bool})
    packed.meta["val"] = torch.empty_like(value, dtype=torch.bool)
    with graph.inserting_after(packed):
        again = graph.call_function(aten._to_copy.default, (packed,), {"dtype": value.dtype})
    again.meta["val"] = torch.empty_like(value)
    for user in readers:
        user.replace_input_with(node, again)


def _draw_for_shape(graph: fx.Graph, node: fx.Node) -> None:
    """Gives the draw one number, repeated, in place of an empty tensor in rows."""
    empty: Any = node.args[0]
    value = empty.meta["val"]
    if empty.target not in _EMPTY or node.target is not aten.bernoulli.p:
        return
    known = all(type(n) is int for n in value.shape) and value.numel() > 0
    if not known or not value.is_contiguous():
        return
    options = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(node):
        one = graph.call_function(aten.full.default, ([], 0), options)
        shape = graph.call_function(aten.expand.default, (one, list(value.shape)))
    one.meta["val"] = torch.zeros_like(value[(0,) * value.ndim])
    shape.meta["val"] = one.meta["val"].expand(value.shape)
    node.replace_input_with(empty, shape)
