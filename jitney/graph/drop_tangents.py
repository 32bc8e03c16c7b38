"""The backward graph for a call in which some results get no gradient.

A model returns its logits beside the loss; the user calls ``loss.backward()`` and the logits'
gradient is nothing, not zeros as large as the logits. As in eager, what depends on a missing
gradient alone is not computed, and an input reached by nothing else gets None.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.effects import is_view
from jitney.graph.join_region import own_gradients
from jitney.graph.region import RegionFacts
from jitney.graph.remove_dead_code import remove_dead_code

aten = torch.ops.aten
#: Nothing where their first operand, or any operand for products, is nothing.
_LINEAR = frozenset((aten._to_copy.default, aten.clone.default, aten.neg.default,
                     aten.sum.dim_IntList, aten.sum.default, aten.div.Tensor,
                     aten.slice_backward.default, aten.select_backward.default))  # fmt: skip
_PRODUCTS = frozenset((aten.mul.Tensor, aten.mm.default, aten.bmm.default))


def drop_tangents(
    gm: fx.GraphModule, facts: RegionFacts, missing: Collection[int]
) -> fx.GraphModule:
    """The backward graph ``gm`` without the gradients ``missing``, by position among those it
    takes (its last placeholders); ``gm`` stays as it is."""
    if not missing:
        return gm
    tangents = sum(result.tangent is not None for result in facts.results)
    graph = fx.Graph()
    result = graph.graph_copy(gm.graph, {}, return_output_node=False)
    graph.output(result)
    for node, old in zip(graph.nodes, gm.graph.nodes, strict=True):
        node.meta = dict(old.meta)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    dropped = [placeholders[len(placeholders) - tangents + position] for position in missing]
    nothing = set(dropped)
    for node in list(graph.nodes):
        if node.op == "call_function" and nothing.intersection(node.all_input_nodes):
            _rewrite(graph, node, nothing)
    output = graph.output_node()
    output.args = (fx.map_arg(output.args[0], lambda n: None if n in nothing else n),)
    remove_dead_code(graph)
    for node in dropped:
        graph.erase_node(node)
    own_gradients(graph)
    names = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    return torch_api.graph_module({name: getattr(gm, name) for name in names}, graph)


def _rewrite(graph: fx.Graph, node: fx.Node, nothing: set[fx.Node]) -> None:
    """Marks ``node`` as nothing, replaces it by what is left of it, or gives it zeros to read."""
    first = node.args[0]
    if node.target in _PRODUCTS or ((node.target in _LINEAR or is_view(node)) and first in nothing):
        nothing.add(node)
        return
    if node.target is aten.add.Tensor and not node.kwargs:
        terms: Any = node.args
        left = [term for term in terms if term not in nothing]
        if not left:
            nothing.add(node)
            return
        if isinstance(left[0], fx.Node) and _alike(left[0], node):
            node.replace_all_uses_with(left[0])
            graph.erase_node(node)
            return
    for operand in nothing.intersection(node.all_input_nodes):
        node.replace_input_with(operand, _zeros(graph, node, operand))


def _alike(a: fx.Node, b: fx.Node) -> bool:
    one, other = a.meta["val"], b.meta["val"]
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def _zeros(graph: fx.Graph, before: fx.Node, like: fx.Node) -> fx.Node:
    value = like.meta["val"]
    with graph.inserting_before(before):
        made = graph.call_function(
            aten.full.default,
            (list(value.shape), 0),
            {"dtype": value.dtype, "device": value.device},
        )
    made.meta["val"] = value.new_empty(value.shape)
    return made
