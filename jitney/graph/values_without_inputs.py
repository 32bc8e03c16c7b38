"""What a torch-level graph computes from no input: masks and conditions that shapes decide."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from jitney import torch_api


def value_without_inputs(node: fx.Node) -> torch.Tensor | None:
    """The tensor that ``node`` is in every call; None where inputs, writes or draws are part of
    it."""
    needed = _ancestors(node)
    if needed is None:
        return None
    with torch_api.dispatch_modes_off(), torch.no_grad():
        return _evaluate(node, needed)


def _ancestors(wanted: fx.Node) -> list[fx.Node] | None:
    """What a node is computed from, in order; None if an input or a write is among it."""
    found: set[fx.Node] = set()
    stack = [wanted]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if node.op not in ("call_function", "call_method") or _writes(node):
            return None
        if any(_writes(user) for user in node.users):
            return None
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return None
        found.add(node)
        stack.extend(node.all_input_nodes)
    return [node for node in wanted.graph.nodes if node in found]


def _writes(node: fx.Node) -> bool:
    """Whether a torch-level call writes into its operands, or draws random numbers."""
    if node.target is operator.setitem:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name not in _NOT_AUGMENTED
    return inplace or augmented or "out" in node.kwargs or "rand" in name or name in _RANDOM


_NOT_AUGMENTED = frozenset({"__invert__", "__int__", "__index__", "__iter__", "__init__"})
_RANDOM = frozenset({"bernoulli", "dropout", "normal", "multinomial", "poisson", "__setitem__"})


def _evaluate(wanted: fx.Node, needed: Iterable[fx.Node]) -> torch.Tensor:
    values: dict[fx.Node, Any] = {}
    for node in needed:
        args = fx.map_arg(node.args, values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, values.__getitem__)
        if node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            values[node] = node.target(*args, **kwargs)
    result = values[wanted]
    assert isinstance(result, torch.Tensor)
    return result
