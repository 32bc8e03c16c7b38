"""Common subexpressions: nodes that compute the same value from the same values become one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch import fx

from jitney.graph.effects import is_effect
from jitney.torch_api.written_ops import writing_form_of


def merge_equal_nodes(graph: fx.Graph, owners: Collection[fx.Node] = ()) -> None:
    """Replaces each node by an earlier equal one. Writes and random draws are never merged; a
    read of an input is not moved past a write to it (writes come last in these graphs).

    ``owners``: nodes whose memory the graph returns; each keeps its own, and so does what an op
    of an author's writes to.
    """
    seen: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or node in owners or is_effect(node) or _is_written(node):
            continue
        key = (node.target, _key(node.args), _key(tuple(node.kwargs.items())))
        try:
            twin = seen.setdefault(key, node)
        except TypeError:  # an argument that does not hash, such as a generator
            continue
        if twin is not node and _places(twin, owners).isdisjoint(_places(node, owners)):
            node.replace_all_uses_with(twin)
            graph.erase_node(node)


def _is_written(node: fx.Node) -> bool:
    """Whether an op of an author's is given the node's memory to write to."""
    writers = (user for user in node.users if writing_form_of(user.target) is not None)
    return any(node in cast(Sequence[Any], writer.args[0]) for writer in writers)


def _places(node: fx.Node, owners: Collection[fx.Node]) -> set[Any]:
    """Which of several results are ``owners``."""
    return {user.args[1] for user in node.users if user.target is getitem and user in owners}


def _key(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple([_key(item) for item in value])
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, bool | int | float):
        return type(value), repr(value)  # 1, 1.0, True, 0.0 and -0.0 differ; nan equals nan
    if isinstance(value, torch.Tensor):
        return id(value)
    return value
