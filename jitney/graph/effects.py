"""Which nodes do something besides computing their value."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.recorder import OpKind, op_kind


def is_effect(node: fx.Node) -> bool:
    """Whether a node writes to memory, draws a random number or may raise: never dropped,
    merged, recomputed or moved past another such node."""
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
    """Whether eager raises for some values of what the node is given: indices, divisors,
    probabilities, matrices that cannot be decomposed."""
    target = node.target
    if not isinstance(target, torch_api.OpOverload) or is_of_autograd(node):
        return False
    name = target.overloadpacket.__name__
    if torch_api.overload_name(target) == "out":
        return False
    if name in _RAISING or _checks_errors(node) or _may_divide_by_zero(name, node):
        return True
    return name in _DRAWING and any(isinstance(a, fx.Node) for a in node.args[:2])


def is_of_autograd(node: fx.Node) -> bool:
    """Whether autograd's own backward computes the node: of values that the forward has checked."""
    return bool(node.meta.get("backward")) and not node.meta.get("authors")


def _checks_errors(node: fx.Node) -> bool:
    """Whether a decomposition that tells its failure (``linalg_inv_ex``) is to raise as well."""
    if "check_errors" not in _parameters(node.target):
        return False
    return bool(_given(node.target, node.args, node.kwargs).get("check_errors"))


def _may_divide_by_zero(name: str, node: fx.Node) -> bool:
    """Whether the node divides whole numbers by what is no number known to be other than zero."""
    value = node.meta.get("val")
    if name not in _DIVISIONS or not isinstance(value, torch.Tensor):
        return False
    by = node.args[1]
    return not (value.is_floating_point() or isinstance(by, int | float) and by)


_RAISING = frozenset(
    "index index_select index_add index_copy index_fill index_put index_reduce gather scatter "
    "scatter_add scatter_reduce masked_scatter take put searchsorted embedding embedding_bag "
    "_embedding_bag _embedding_bag_forward_only nll_loss_forward nll_loss2d_forward "
    "multi_margin_loss multilabel_margin_loss_forward bincount histc histogram segment_reduce "
    "cholesky cholesky_inverse linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh "
    "_linalg_svd linalg_pinv repeat_interleave".split()
)
#: What draws by probabilities, rates or deviations that a tensor gives.
_DRAWING = frozenset(["multinomial", "bernoulli", "poisson", "normal", "binomial"])
_DIVISIONS = frozenset(["div", "floor_divide", "remainder", "fmod"])


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
    return torch_api.has_side_effects(target)


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
    """The node whose memory ``node`` is a view of; itself if of none."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node
