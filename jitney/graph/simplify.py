"""The passes over a freshly traced graph, in order."""

from __future__ import annotations

from torch import fx

from jitney.graph.remove_dead_code import remove_dead_code


def simplify(graph: fx.Graph) -> None:
    """Rewrites ``graph`` in place; its outputs keep their values, shapes and strides."""
    remove_dead_code(graph)
