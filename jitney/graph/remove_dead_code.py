"""Drops nodes whose value nothing reads."""

from __future__ import annotations

from torch import fx

from jitney.graph.effects import is_effect, may_raise


def remove_dead_code(graph: fx.Graph) -> None:
    """Erases unread nodes, but for placeholders and those with effects (writes, random draws,
    errors)."""
    for node in reversed(graph.nodes):
        if node.users or node.op not in ("call_function", "get_attr"):
            continue
        if not (is_effect(node) or may_raise(node)):
            graph.erase_node(node)
