"""Computes at compile time what depends on no input: positions, masks, rotary tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.effects import is_effect

#: Bytes of folded values a region may hold, in all and each; beyond it they are computed anew.
LIMIT = 32 << 20

#: Not worth a constant: made faster than read.
_FILLS = frozenset(
    "full scalar_tensor zeros ones empty new_zeros new_ones new_full full_like zeros_like "
    "ones_like empty_like new_empty empty_strided empty_permuted expand fill arange".split()
)


def fold_constants(
    graph: fx.Graph, constants: dict[str, torch.Tensor], skip: Collection[fx.Node] = ()
) -> None:
    """Replaces nodes whose inputs are constants by ``get_attr`` nodes; their values, computed by
    eager kernels, go to ``constants``. ``skip``: nodes that stay (outputs)."""
    known = _constant_nodes(graph)
    values: dict[fx.Node, Any] = {}
    spent = 0
    for node in list(graph.nodes):
        if node not in known or node.op == "get_attr" or node in skip:
            continue
        if not _is_frontier(node, known):
            continue
        size = _bytes(node)
        if size is None or spent + size > LIMIT:
            continue
        value = _evaluate(node, values, constants)
        if not isinstance(value, torch.Tensor):
            continue
        spent += size
        _replace(graph, node, value, constants)


def _constant_nodes(graph: fx.Graph) -> set[fx.Node]:
    known: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            known.add(node)
        elif node.op == "call_function" and not is_effect(node) and _on_cpu(node):
            if all(source in known for source in node.all_input_nodes):
                known.add(node)
    return known


def _on_cpu(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return all(
        isinstance(v, torch.Tensor) and v.device.type == "cpu" and not torch_api.is_symbolic(v)
        for v in values
    )


def _is_frontier(node: fx.Node, known: set[fx.Node]) -> bool:
    """Whether something that is not constant reads the node, and keeping its value is worth it."""
    name = torch_api.op_name(node.target)
    return name not in _FILLS and any(user not in known for user in node.users)


def _bytes(node: fx.Node) -> int | None:
    value = node.meta["val"]
    return value.numel() * value.dtype.itemsize if isinstance(value, torch.Tensor) else None


def _evaluate(node: fx.Node, values: dict[fx.Node, Any], constants: dict[str, torch.Tensor]) -> Any:
    """The real value of a constant node, on eager kernels."""
    if node in values:
        return values[node]
    if node.op == "get_attr":
        values[node] = constants[str(node.target)]
        return values[node]
    for source in node.all_input_nodes:
        _evaluate(source, values, constants)
    args = fx.map_arg(node.args, values.__getitem__)
    kwargs = fx.map_arg(node.kwargs, values.__getitem__)
    with torch_api.dispatch_modes_off(), torch.no_grad():
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[node]


def _replace(
    graph: fx.Graph, node: fx.Node, value: torch.Tensor, constants: dict[str, torch.Tensor]
) -> None:
    fake = node.meta["val"]
    with torch_api.dispatch_modes_off():
        kept = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cpu")
        _first_copies(kept).copy_(_first_copies(value, fake.stride()))
    name = f"folded_{len(constants)}"
    constants[name] = kept
    with graph.inserting_before(node):
        constant = graph.create_node("get_attr", name)
    constant.meta.update(val=fake, origin=node.meta.get("origin"))
    node.replace_all_uses_with(constant)


def _first_copies(tensor: torch.Tensor, strides: Sequence[int] | None = None) -> torch.Tensor:
    """A view of the first copy along each dimension of stride 0: an expanded tensor cannot be
    written."""
    for dim, stride in enumerate(tensor.stride() if strides is None else strides):
        if stride == 0 and tensor.size(dim) > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
