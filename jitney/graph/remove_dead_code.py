"""Drops nodes whose value nothing reads."""

from __future__ import annotations

from torch import fx

from jitney.graph.effects import is_effect


def remove_dead_code(graph: fx.Graph) -> None:
    """Erases unread nodes, but for placeholders and those with effects (writes, random draws)."""
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not is_effect(node):
            graph.erase_node(node)
