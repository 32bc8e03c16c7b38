"""Images between convolutions lie channels-last, whatever the model's inputs are.

Then a place's channels are one piece of memory: a convolution is a product whose rows are read
where they lie, its epilogue stores whole vectors, and pooling, resampling and concatenation have
their lanes along channels. What leaves the graph has the strides it was traced with.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.events import log
from jitney.graph.recorder import OpKind, op_kind

aten = torch.ops.aten

#: Ops whose result is best laid out as their operand is; pointwise ops are told by their tag.
_FOLLOWERS = frozenset(
    (aten.native_batch_norm, aten._native_batch_norm_legit_no_training, aten.avg_pool2d,
     aten.max_pool2d_with_indices,
     aten._adaptive_avg_pool2d, aten.upsample_bilinear2d, aten.upsample_nearest2d, aten.cat,
     aten.constant_pad_nd)
)  # fmt: skip
#: Larger patches that do not overlap (an embedding of patches) gain nothing.
_LARGEST_STRIDE = 3


def lay_out_channels_last(graph: fx.Graph) -> None:
    """Rewrites the strides of values inside a CPU graph without gradients, in place."""
    chosen = [node for node in graph.nodes if _suits(node)]
    if len(chosen) < 2:
        return
    log.emit("layout", layout="channels-last", convolutions=len(chosen))
    traced: dict[fx.Node, Any] = {}
    for node in list(graph.nodes):
        if node.op == "output":
            for source in node.all_input_nodes:
                if source in traced:
                    _restore(graph, node, source, traced[source])
        elif node in chosen:
            _change(node, _channels_last(node.meta["val"]), traced)
        elif node.op == "call_function" and any(s in traced for s in node.all_input_nodes):
            _follow(graph, node, traced)


def _suits(node: fx.Node) -> bool:
    """A plain 2-d float convolution on the CPU whose image has a known size."""
    if node.target is not aten.convolution.default:
        return False
    out, weight, stride, transposed = node.meta["val"], node.args[1], node.args[3], node.args[6]
    assert isinstance(weight, fx.Node) and isinstance(stride, list | tuple)
    if out.device.type != "cpu" or out.dtype not in (torch.float32, torch.float64):
        return False
    if transposed or out.dim() != 4 or max(stride) > _LARGEST_STRIDE:  # type: ignore[type-var]
        return False
    return not any(isinstance(s, torch.SymInt) for s in (*out.shape[1:], *weight.meta["val"].shape))


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    """A fake like ``value``, dense with its channels last."""
    return torch_api.fake_in_format(value, torch.channels_last)


def _change(node: fx.Node, value: torch.Tensor, traced: dict[fx.Node, Any]) -> None:
    before = node.meta["val"]
    if before.stride() != value.stride():
        traced[node] = before
        node.meta["val"] = value


def _follow(graph: fx.Graph, node: fx.Node, traced: dict[fx.Node, Any]) -> None:
    """A reader of values laid out anew: follows where that helps, keeps its own layout where the
    op does not care, and gets its operands as traced where it looks at strides."""
    target = node.target
    if target is operator.getitem:
        owner, item = node.args
        assert isinstance(owner, fx.Node)
        _change(node, owner.meta["val"][item], traced)
        return
    if not isinstance(target, torch._ops.OpOverload):
        return
    if op_kind(target) in (OpKind.VIEW, OpKind.ALIAS) or "view" in target._opname:
        value = None if "strided" in target._opname else _viewed(node)
        if value is None:
            _restore_operands(graph, node, traced)
        else:
            _change(node, value, traced)
    elif torch.Tag.nondeterministic_seeded in target.tags:  # numbers are drawn in memory's order
        _restore_operands(graph, node, traced)
    elif _follows(node, target):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            _change(node, _followed(value), traced)
        else:
            traced[node] = value
            node.meta["val"] = type(value)(_followed(v) for v in value)


def _follows(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    if node.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    copies = target in (aten.clone.default, aten._to_copy.default)
    return copies or torch.Tag.pointwise in target.tags or target.overloadpacket in _FOLLOWERS


def _followed(value: torch.Tensor) -> torch.Tensor:
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_contiguous()
    return _channels_last(value) if is_image else value


def _viewed(node: fx.Node) -> torch.Tensor | None:
    """The fake a view of the operands as they lie now is; None where there is no such view."""
    args = fx.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda n: n.meta["val"])
    try:
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError):  # fake kernels raise either
        return None
    return value if isinstance(value, torch.Tensor) else None


def _restore_operands(graph: fx.Graph, user: fx.Node, traced: dict[fx.Node, Any]) -> None:
    for source in [s for s in user.all_input_nodes if s in traced]:
        _restore(graph, user, source, traced[source])


def _restore(graph: fx.Graph, user: fx.Node, source: fx.Node, value: torch.Tensor) -> None:
    """``user`` reads a copy of ``source`` with the strides it was traced with."""
    with graph.inserting_before(user):
        copy = graph.call_function(aten.clone.default, (source,))
    copy.meta.update(val=value, origin=source.meta.get("origin"))
    user.replace_input_with(source, copy)
