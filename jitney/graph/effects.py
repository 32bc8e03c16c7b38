"""Which nodes do something besides computing their value."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.leaves import is_authors
from jitney.graph.recorder import OpKind, op_kind


def is_effect(node: fx.Node) -> bool:
    """Whether a node writes to memory, draws a random number, may raise, or is an author's own op,
    of which none of this is known: never dropped, merged, recomputed or moved past another such
    node."""
    if node.op != "call_function" or not isinstance(node.target, torch_api.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in node.target.tags or _acts(node.target)


def runs_once(node: fx.Node) -> bool:
    """Whether a second run would do more than compute the value again. Attention is tagged as
    random, and is only with dropout."""
    if node.op != "call_function" or not isinstance(node.target, torch_api.OpOverload):
        return False
    return _acts(node.target) or draws_random(node.target, node.args, node.kwargs)


def can_repeat(node: fx.Node) -> bool:
    """Whether running the node once more changes nothing. More can than are no effect: attention
    without dropout."""
    return not runs_once(node) or torch_api.is_assertion(node.target)


def may_raise(node: fx.Node) -> bool:
    """Whether eager raises for some values of what the node is given (`torch_api.refused_values`).
    Functions are asked about by `capture/inside_handlers`, from the same table."""
    target = node.target
    if not isinstance(target, torch_api.OpOverload) or is_of_autograd(node):
        return False
    if torch_api.overload_name(target) == "out":
        return False
    value, name = node.meta.get("val"), target.overloadpacket.__name__
    of_whole = isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
    return _checks_errors(node) or torch_api.op_may_refuse(name, node.args, of_whole)


def is_of_autograd(node: fx.Node) -> bool:
    """Whether autograd's own backward computes the node: of values that the forward has checked."""
    return bool(node.meta.get("backward")) and not node.meta.get("authors")


def _checks_errors(node: fx.Node) -> bool:
    """Whether a decomposition that tells its failure (``linalg_inv_ex``) is to raise as well."""
    if "check_errors" not in _parameters(node.target):
        return False
    return bool(_given(node.target, node.args, node.kwargs).get("check_errors"))


def draws_random(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an op with these arguments draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    given = _given(target, args, kwargs)
    return "dropout_p" not in _parameters(target) or bool(given.get("dropout_p", 0.0))


@lru_cache(maxsize=4096)
def _parameters(target: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in torch_api.schema_of(target).arguments)


def _given(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an op, by name."""
    return {**dict(zip(_parameters(target), args, strict=False)), **kwargs}


def _acts(target: torch_api.OpOverload) -> bool:
    if op_kind(target) in (OpKind.IN_PLACE, OpKind.MUTATES):
        return True
    return torch_api.has_side_effects(target) or is_authors(target)


#: Views whose schema does not say so.
_UNANNOTATED = ("aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_split_with_sizes")


def is_view(node: fx.Node) -> bool:
    """Whether the node's value shares the memory of its first tensor argument."""
    target = node.target
    if target is operator.getitem:
        owner = node.args[0]
        return isinstance(owner, fx.Node) and is_view(owner)
    if not isinstance(target, torch_api.OpOverload):
        return False
    return op_kind(target) is OpKind.VIEW or str(target.overloadpacket) in _UNANNOTATED


def memory_owner(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` is a view of, or which it has copied into; itself if of
    none."""
    while is_view(node) or node.target is torch.ops.aten.copy_.default:
        node = node.args[0]  # type: ignore[assignment]
    return node
