"""Inputs written to before a call that may raise and is never run twice, so that an error of it
leaves them as eager does (`capture/written_ops`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from jitney.errors import Unsupported
from jitney.graph.effects import is_view

_SETTLES = "settles"


def settle(inputs: Iterable[Any], recorder: Any, layer: Any) -> None:
    """Copies into inputs (`trace_region._Fed`) what they hold by now, where it is not there yet.
    What follows reads, and writes to, the inputs."""
    for each in inputs:
        if not isinstance(each.given, torch.Tensor) or each.fed.grad_fn is not each.history:
            continue
        node = recorder.node_of(layer.value(each.fed))
        if node is (each.settled[-1] if each.settled else each.node):
            continue
        value = recorder.copied_back(each.placeholder, node)
        recorder.node_of(value).meta[_SETTLES] = True
        layer.give(recorder, each.fed, value)
        each.settled.append(recorder.node_of(value))


def refuse_old_values(graph: fx.Graph) -> None:
    """Raises Unsupported where a value that an input had before such a copy is read behind it."""
    if not any(node.meta.get(_SETTLES) for node in graph.nodes):
        return
    now: dict[Any, fx.Node] = {}  # by placeholder, the node that stands for what it holds
    given: dict[fx.Node, Any] = {}  # by such a node, the placeholder
    for node in graph.nodes:
        is_copy = node.target is torch.ops.aten.copy_.default
        for source in node.all_input_nodes[is_copy:] if "sym_" not in str(node.target) else ():
            owner = source
            while is_view(owner):
                owner = owner.args[0]  # type: ignore[assignment]
            placeholder = given.get(owner, owner)
            if now.get(placeholder, owner) is not owner:
                reason = "what an input held before a custom op's call is read behind it"
                raise Unsupported("custom-op", reason)
        if is_copy:
            now[node.args[0]] = node
            given[node] = node.args[0]
