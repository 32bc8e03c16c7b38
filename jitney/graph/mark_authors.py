"""Nodes that a custom function's backward computes are told from what autograd's own does."""

from __future__ import annotations

from typing import Any

from torch import fx

from jitney import torch_api


def mark_authors(graph: fx.Graph, gm: fx.GraphModule) -> None:
    """Notes, at the nodes of the joint ``graph`` of ``gm`` that an author's backward computes, that
    they may raise and draw as eager's do: autograd's own do neither. ``meta["authors"]`` names the
    gradients that reach the function. All of the backward pass counts where Dynamo's record of a
    function does not tell its own."""
    every = any(torch_api.applies_unmarked(n.target) for n in gm.graph.nodes)
    found = _between_marks(graph)
    for node in graph.nodes:
        if not node.meta.get("backward"):
            continue
        if node not in found and node.target is not torch_api.REACHED:
            by = [found[n] for n in node.all_input_nodes if n in found]
            if by:  # only raises, and is read by nothing
                found[node] = by[0]
        if every or node in found:
            node.meta["authors"] = found.get(node, "every")


def _between_marks(graph: fx.Graph) -> dict[fx.Node, str]:
    """What marked values are computed from, back to what the backward is given, which is marked,
    too; and the marks."""
    found: dict[fx.Node, str] = {}
    for mark in graph.nodes:
        if mark.target is not torch_api.REACHED:
            continue
        given: Any = mark.args[1]
        stack: list[Any] = [mark]
        while stack:
            node = stack.pop()
            if node in found or not node.meta.get("backward") or node.op != "call_function":
                continue
            if node is mark or node.target is not torch_api.REACHED:
                found[node] = " ".join(str(g) for g in given)
                stack += node.all_input_nodes[:1] if node is mark else node.all_input_nodes
    return found
