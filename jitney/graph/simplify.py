"""The passes over a freshly traced graph, in order."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from jitney.graph.effects import memory_owner
from jitney.graph.fold_constants import fold_constants
from jitney.graph.merge_equal_nodes import merge_equal_nodes
from jitney.graph.read_constant_numbers import read_constant_numbers
from jitney.graph.recognise_masks import recognise_masks
from jitney.graph.remove_dead_code import remove_dead_code
from jitney.graph.remove_noops import remove_noops
from jitney.graph.simplify_masks import simplify_masks


def simplify(
    graph: fx.Graph, constants: dict[str, torch.Tensor], written: Collection[fx.Node] = ()
) -> None:
    """Rewrites ``graph`` in place; its outputs keep their values, shapes and strides.

    ``written``: placeholders that the graph, or the program before its backward pass, writes to.
    """
    written = set(written)
    owners = {memory_owner(node) for node in graph.output_node().all_input_nodes}
    owners.update(graph.output_node().all_input_nodes)
    remove_dead_code(graph)
    merge_equal_nodes(graph, owners)
    fold_constants(graph, constants, owners)
    read_constant_numbers(graph, constants)
    recognise_masks(graph, constants)
    simplify_masks(graph, constants, owners)
    remove_noops(graph, owners, written)
    remove_dead_code(graph)
