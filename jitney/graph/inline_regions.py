"""Regions in a graph that torch's capture gives us: checkpoints and nested regions, in line.

A checkpoint's nodes bear its number, as those of our own capture do: what is computed again in the
backward pass is chosen by it, and random numbers are drawn once.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

from torch import fx

_CHECKPOINT, _NESTED = "tag_activation_checkpoint", "invoke_subgraph"
_SELECTIVE = "_checkpoint_context_fn"  # says what is saved: everything may be


def inline_regions(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` with the graphs of its regions in place of their calls."""
    numbers = 0
    node = next(iter(gm.graph.nodes))
    while node.op != "root":
        before, after = node.prev, node.next
        region = _region_of(gm, node)
        if region is not None and all(user.target is getitem for user in node.users):
            graph, operands, is_checkpoint = region
            numbers += is_checkpoint
            _inline(gm, node, graph, operands, numbers if is_checkpoint else None)
            after = before.next  # there are regions in regions
        node = after
    for node in gm.graph.find_nodes(op="get_attr"):
        if not node.users:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _region_of(gm: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, Any, bool] | None:
    """(graph, operands, whether it is a checkpoint that saves nothing) of a call of a region."""
    name = str(node.target).rpartition(".")[2] if node.op == "call_function" else ""
    if name not in (_CHECKPOINT, _NESTED) or not isinstance(node.args[0], fx.Node):
        return None
    graph = getattr(gm, str(node.args[0].target), None)
    operands = node.args[1:] if name == _CHECKPOINT else node.args[2:]
    if not isinstance(graph, fx.GraphModule):
        return None
    if len(graph.graph.find_nodes(op="placeholder")) != len(operands):
        return None
    return graph, operands, name == _CHECKPOINT and _SELECTIVE not in graph.meta


def _inline(
    gm: fx.GraphModule, call: fx.Node, region: fx.GraphModule, operands: Any, number: int | None
) -> None:
    values: dict[fx.Node, Any] = {}
    given = iter(operands)
    results: Any = ()
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                results = fx.map_arg(node.args[0], values.__getitem__)
            elif node.op == "get_attr":
                values[node] = gm.graph.get_attr(_adopt(gm, region, str(node.target)))
                values[node].meta = dict(node.meta)
            else:
                values[node] = made = gm.graph.node_copy(node, values.__getitem__)
                made.meta = dict(node.meta)
                if number is not None and node.op.startswith("call"):
                    made.meta["checkpoint"] = number
    for user in list(call.users):
        user.replace_all_uses_with(results[user.args[1]])
        gm.graph.erase_node(user)
    gm.graph.erase_node(call)


def _adopt(gm: fx.GraphModule, region: fx.GraphModule, name: str) -> str:
    """The name in ``gm`` of what a region calls ``name``."""
    value: Any = region
    for part in name.split("."):
        value = getattr(value, part)
    new = name.replace(".", "_")
    while hasattr(gm, new):
        if getattr(gm, new) is value:
            return new
        new += "_"
    setattr(gm, new, value)
    return new
