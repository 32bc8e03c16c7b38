"""Simplifies what transformers writes to build masks: operands that are all true, empty cats,
expands."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from jitney import torch_api

aten = torch.ops.aten
_AND = frozenset((aten.bitwise_and.Tensor, aten.logical_and.default))
_SINKING = frozenset(
    (aten.where.self, aten.bitwise_not.default, aten.logical_not.default, aten._to_copy.default,
     aten.masked_fill.Scalar, aten.mul.Tensor, aten.sub.Tensor, aten.rsub.Scalar, *_AND)
)  # fmt: skip
_REWRITTEN = _SINKING | {aten.cat.default}


def simplify_masks(
    graph: fx.Graph, constants: dict[str, torch.Tensor], owners: Collection[fx.Node]
) -> None:
    """Rewrites in place: ``and`` with a constant that is true everywhere, ``cat`` with tensors of
    no elements, and pointwise ops on expanded masks, which are computed before the expand.

    ``owners``: nodes whose memory the graph returns; they stay.
    """
    for node in list(graph.nodes):
        if node.target not in _REWRITTEN or node in owners or torch_api.is_symbolic_value(node):
            continue
        if node.target in _AND:
            _drop_true(graph, node, constants)
        elif node.target is aten.cat.default:
            _drop_empty(graph, node)
        if node.target in _SINKING and node.users:
            _sink_expand(graph, node)


def _drop_true(graph: fx.Graph, node: fx.Node, constants: dict[str, torch.Tensor]) -> None:
    for mask, other in (node.args[:2], node.args[1::-1]):
        if not isinstance(mask, fx.Node) or not isinstance(other, fx.Node):
            continue
        both_bool = all(n.meta["val"].dtype is torch.bool for n in (mask, other))
        if both_bool and _is_true(mask, constants):
            _replace(graph, node, _expanded(graph, node, other))
            return


def _is_true(mask: fx.Node, constants: dict[str, torch.Tensor]) -> bool:
    """Whether a bool node is known to be true everywhere."""
    if mask.op == "get_attr":
        with torch_api.dispatch_modes_off():
            return bool(constants[str(mask.target)].all())
    name = torch_api.op_name(mask.target)
    return name in ("ones", "new_ones", "ones_like") or (name == "full" and mask.args[1] is True)


def _drop_empty(graph: fx.Graph, node: fx.Node) -> None:
    parts: Any = node.args[0]
    full = [part for part in parts if part.meta["val"].numel()]
    if len(full) == len(parts) or not full:
        return
    if any(part.meta["val"].dtype != node.meta["val"].dtype for part in parts):
        return
    if len(full) > 1:
        node.args = (full, *node.args[1:])
        return
    with graph.inserting_before(node):
        arguments: dict[str, Any] = {"memory_format": torch.contiguous_format}
        copy = graph.call_function(aten.clone.default, (full[0],), arguments)
    copy.meta.update(node.meta)
    if copy.meta["val"].is_contiguous():
        _replace(graph, node, copy)
    else:
        graph.erase_node(copy)


def _sink_expand(graph: fx.Graph, node: fx.Node) -> None:
    """``op(expand(x), scalars)`` -> ``expand(op(x, scalars))``."""
    tensors = node.all_input_nodes
    sources = {t: _unexpanded(t) for t in tensors if t.target is aten.expand.default}
    fakes = [sources.get(t, t).meta["val"] for t in tensors]
    if not sources or not all(isinstance(fake, torch.Tensor) for fake in fakes):
        return
    shape = torch.broadcast_shapes(*(fake.shape for fake in fakes))
    if len(shape) != node.meta["val"].dim() or shape.numel() >= node.meta["val"].numel():
        return
    with graph.inserting_before(node):
        small = graph.node_copy(node, lambda n: sources.get(n, n))
    small.meta["val"] = small.target(  # type: ignore[operator]
        *fx.map_arg(small.args, lambda n: n.meta["val"]),
        **fx.map_arg(small.kwargs, lambda n: n.meta["val"]),
    )
    _replace(graph, node, _expanded(graph, node, small))


def _unexpanded(node: fx.Node) -> fx.Node:
    """The tensor that ``node`` expands, without dimensions added in front."""
    source: Any = node.args[0]
    while source.target is aten.expand.default:
        node, source = source, source.args[0]
    return source if source.meta["val"].dim() == node.meta["val"].dim() else node


def _expanded(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node:
    shape = list(node.meta["val"].shape)
    if list(source.meta["val"].shape) == shape:
        return source
    with graph.inserting_before(node):
        expanded = graph.call_function(aten.expand.default, (source, shape))
    expanded.meta["val"] = source.meta["val"].expand(shape)
    return expanded


def _replace(graph: fx.Graph, node: fx.Node, new: fx.Node) -> None:
    node.replace_all_uses_with(new)
    graph.erase_node(node)
