"""The backward graph for a call in which some results get no gradient.

A model returns its logits beside the loss; the user calls ``loss.backward()`` and the logits'
gradient is nothing, not zeros as large as the logits. As in eager, what depends on a missing
gradient alone is not computed (zeros would become NaN where they meet infinity), and an input
reached by nothing else gets None.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.join_region import own_gradients
from jitney.graph.region import RegionFacts
from jitney.graph.remove_dead_code import remove_dead_code

aten = torch.ops.aten


def drop_tangents(
    gm: fx.GraphModule, facts: RegionFacts, missing: Collection[int]
) -> fx.GraphModule | None:
    """The backward graph ``gm`` without the gradients ``missing``, by position among those it
    takes (its last placeholders); ``gm`` stays as it is. None where that takes zeros of a symbolic
    size."""
    if not missing:
        return gm
    graph = fx.Graph()
    result = graph.graph_copy(gm.graph, {}, return_output_node=False)
    graph.output(result)
    for node, old in zip(graph.nodes, gm.graph.nodes, strict=True):
        node.meta = dict(old.meta)
    tangents = [node for node in graph.nodes if node.op == "placeholder"][-len(facts.tangents) :]
    dropped = [tangents[position] for position in missing]
    nothing, linear = set(dropped), set(tangents)
    for node in list(graph.nodes):
        if node.op == "call_function" and linear.intersection(node.all_input_nodes):
            linear.add(node)
            if not _rewrite(graph, node, nothing, linear):
                return None
    output = graph.output_node()
    present = [i for i in range(len(tangents)) if i not in missing]
    gradients: Any = output.args[0]
    left = []
    for node, reaching in zip(gradients, facts.grad_tangents, strict=True):
        if node not in nothing:
            left.append(node)
        elif not any(reaching >> position & 1 for position in present):
            left.append(None)
        elif _is_symbolic(node.meta["val"]):
            return None
        else:  # eager's rule for one that is left makes zeros of it
            left.append(_zeros(graph, output, node))
    output.args = (tuple(left),)
    unreached = {n.meta.get("authors") for n in nothing if n.target is torch_api.REACHED} - {None}
    for node in reversed(graph.nodes):  # draws, too: a GPU's attention is said to without dropout
        of_authors = node.op != "placeholder" and node.meta.get("authors") in unreached
        if node in nothing or (of_authors and not node.users):
            graph.erase_node(node)
    remove_dead_code(graph)
    own_gradients(graph)
    names = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    return torch_api.graph_module({name: getattr(gm, name) for name in names}, graph)


def _rewrite(graph: fx.Graph, node: fx.Node, nothing: set[fx.Node], linear: set[fx.Node]) -> bool:
    """Marks ``node`` as nothing (it is linear in its operands that depend on gradients), replaces
    it by what is left of a sum, or gives it zeros to read; False where it cannot."""
    if node.target is torch_api.REACHED:
        return _reach(graph, node, nothing, linear)
    gradients = linear.intersection(node.all_input_nodes)
    missing = gradients & nothing
    if missing == gradients and isinstance(node.meta["val"], torch.Tensor | tuple | list):
        nothing.add(node)
        return True
    if node.target is aten.add.Tensor and not node.kwargs:
        left: Any = [term for term in node.args if term not in nothing]
        if len(left) == 1 and _alike(left[0], node):
            if left[0].meta["val"].stride() == node.meta["val"].stride():
                node.replace_all_uses_with(left[0])
                graph.erase_node(node)
            else:
                node.target, node.args = aten.mul.Tensor, (left[0], 1)
            return True
    if any(_is_symbolic(operand.meta["val"]) for operand in missing):
        return False
    for operand in missing:
        node.replace_input_with(operand, _zeros(graph, node, operand))
    return True


def _reach(graph: fx.Graph, node: fx.Node, nothing: set[fx.Node], linear: set[fx.Node]) -> bool:
    """`_rewrite` for the mark of a value that a custom function's backward computes: nothing where
    all of the function's gradients are missing; else a gradient that is missing is zeros."""
    value, gradients = node.args
    assert isinstance(value, fx.Node) and isinstance(gradients, list | tuple)
    given = [g for g in gradients if g in linear]
    left = [g for g in gradients if g not in nothing]
    if given and nothing.issuperset(given):
        nothing.add(node)
        return True
    if value in nothing:
        if _is_symbolic(value.meta["val"]):
            return False
        value = _zeros(graph, node, value)
    node.args = (value, left)
    return True


def _is_symbolic(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or any(map(torch_api.is_symbolic, value.shape))


def _alike(a: fx.Node, b: fx.Node) -> bool:
    one, other = a.meta["val"], b.meta["val"]
    return (one.shape, one.dtype) == (other.shape, other.dtype)


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
