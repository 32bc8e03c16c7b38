"""Drops ops that give back what they are given, and runs views of views together."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.effects import is_view, memory_owner

aten = torch.ops.aten

#: Views that are the tensor itself when nothing about it changes.
_SHAPE_OPS = frozenset(
    (aten.view.default, aten.expand.default, aten.permute.default, aten.slice.Tensor,
     aten._unsafe_view.default, aten._to_copy.default, aten.clone.default, aten.alias.default,
     aten.squeeze.dims, aten.contiguous.default)
)  # fmt: skip
#: ``f(f(x, a), b)`` is ``f(x, b)``: the arguments say what comes out in full.
_ABSORBING = frozenset((aten.view.default,))
#: Writes to places counted from where the storage of what they are given begins.
_COUNT_FROM_STORAGE = frozenset((aten.as_strided_scatter.default,))
_TIMES_ONE = frozenset((aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar))
_PLUS_ZERO = frozenset((aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar))


def remove_noops(
    graph: fx.Graph, owners: Collection[fx.Node], written: Collection[fx.Node]
) -> None:
    """Rewrites in place. ``owners``, whose memory the graph returns, stay, and so does a copy of a
    ``written`` placeholder or of a view of one."""
    for node in graph.nodes:
        if node.op != "call_function" or node in owners or not node.args:
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or source in written:
            continue
        if not is_view(node) and memory_owner(source) in written:
            continue
        if node.target in _ABSORBING and source.target is node.target:
            node.replace_input_with(source, source.args[0])
            of, source = source.meta.get("of"), node.args[0]
            node.meta["of"] = source.meta["val"] if of is None else of
        if _gives_back(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _gives_back(node: fx.Node, source: fx.Node) -> bool:
    if not _looks_alike(node.meta.get("val"), source.meta.get("val")):
        return False
    if not _COUNT_FROM_STORAGE.isdisjoint(user.target for user in node.users):
        begins = (each.meta["val"].storage_offset() for each in (node, source))
        if not torch_api.surely_equal(*begins):
            return False
    if node.target in _SHAPE_OPS:
        return node.target is not aten.slice.Tensor or _whole(node)
    if len(node.args) != 2 or node.kwargs:
        return False
    number = node.args[1]
    if node.target in _TIMES_ONE:
        return isinstance(number, int | float) and number == 1
    # x + 0.0 is not x for x = -0.0
    is_float = source.meta["val"].dtype.is_floating_point
    is_zero = isinstance(number, int) and number == 0
    return is_zero and not is_float and node.target in _PLUS_ZERO


def _looks_alike(a: object, b: object) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.dtype != b.dtype or a.dim() != b.dim() or a.device != b.device:
        return False
    pairs = [*zip(a.shape, b.shape), *zip(a.stride(), b.stride())]
    return all(torch_api.surely_equal(x, y) for x, y in pairs)


def _whole(node: fx.Node) -> bool:
    start = node.args[2] if len(node.args) > 2 else 0
    step = node.args[4] if len(node.args) > 4 else 1
    return bool(start in (0, None) and step == 1)
