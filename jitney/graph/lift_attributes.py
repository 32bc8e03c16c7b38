"""Tensors that torch's capture leaves with the graph module: inputs of the graph.

Those of an optimizer, which its step writes to, come so. The module stays their only holder: torch
takes them from it when the optimizer goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from jitney.torch_api import modules

Compiled = Callable[..., Any]
Places = tuple[tuple[dict[str, Any], str], ...]


def lift_attributes(gm: fx.GraphModule, constant: bool) -> tuple[fx.GraphModule, Places]:
    """A copy of ``gm`` that takes its parameters and buffers, unless they are ``constant``, behind
    its other inputs; where they are. torch goes on to ask the graph it gave for its inputs."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    inputs: dict[str, fx.Node] = {}
    places = []
    for node in graph.find_nodes(op="get_attr"):
        name = str(node.target)
        holder = next((d for d in modules.tensors_by_name(gm) if name in d), None)
        if (
            constant
            or holder is None
            or type(holder[name]) not in (torch.Tensor, torch.nn.Parameter)
        ):
            continue
        if name not in inputs:
            with graph.inserting_before(first):
                inputs[name] = graph.placeholder(f"{node.name}_given")
            inputs[name].meta = dict(node.meta)
            places.append((holder, name))
        node.replace_all_uses_with(inputs[name])
    for node in graph.find_nodes(op="get_attr"):
        if str(node.target) in inputs:
            graph.erase_node(node)
    return fx.GraphModule(gm, graph), tuple(places)


def given_attributes(run: Compiled, places: Places) -> Compiled:
    """``run``, which takes what lies at ``places`` too, for the other inputs alone."""

    def call(*inputs: Any) -> Any:
        return run(*inputs, *[holder[name] for holder, name in places])

    return call if places else run
