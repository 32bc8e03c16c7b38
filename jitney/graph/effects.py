"""Which nodes do something besides computing their value."""

from __future__ import annotations

import operator

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.recorder import OpKind, op_kind


def is_effect(node: fx.Node) -> bool:
    """Whether a node writes to memory, draws a random number or may raise: never dropped,
    merged, recomputed or moved past another such node."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return True
    if op_kind(node.target) in (OpKind.IN_PLACE, OpKind.MUTATES):
        return True
    return torch_api.has_side_effects(node.target)


#: Views whose schema does not say so.
_UNANNOTATED = ("aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_split_with_sizes")


def is_view(node: fx.Node) -> bool:
    """Whether the node's value shares the memory of its first tensor argument."""
    target = node.target
    if target is operator.getitem:
        owner = node.args[0]
        return isinstance(owner, fx.Node) and is_view(owner)
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return op_kind(target) is OpKind.VIEW or str(target.overloadpacket) in _UNANNOTATED


def memory_owner(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` is a view of; itself if of none."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node
