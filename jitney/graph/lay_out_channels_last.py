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
    (aten.native_batch_norm, aten._native_batch_norm_legit_no_training,
     aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward,
     aten.avg_pool2d, aten.avg_pool2d_backward, aten.max_pool2d_with_indices,
     aten.max_pool2d_with_indices_backward,
     aten._adaptive_avg_pool2d, aten.upsample_bilinear2d, aten.upsample_nearest2d, aten.cat,
     aten.constant_pad_nd)
)  # fmt: skip
#: Views that say of what sizes they are, not which axes they take.
_IN_SIZES = (aten.view.default, aten._unsafe_view.default)
#: Ops that read any strides; others get their operands as traced (eager's formula for group
#: norm's gradient, for one, gives its kernel operands of one layout, and garbage comes of two).
_READERS = frozenset(
    (aten.convolution, aten.convolution_backward, aten.sum, aten.mean, aten.amax, aten.amin,
     aten.var, aten.var_mean, aten.native_group_norm, aten.native_layer_norm, aten._softmax,
     aten._log_softmax, aten.mm, aten.bmm, aten.addmm, aten.copy_)
)  # fmt: skip
#: Larger patches that do not overlap (an embedding of patches) gain nothing.
_LARGEST_STRIDE = 3


def lay_out_channels_last(graph: fx.Graph) -> None:
    """Rewrites the strides of values inside a CPU graph, in place; with gradients it is the joint
    graph, so that what the forward pass keeps lies so too."""
    chosen = {node for node in graph.nodes if _suits(node)}
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
            _change(node, _like_images(node.meta["val"]), traced)
        elif node.op == "call_function" and any(s in traced for s in node.all_input_nodes):
            _follow(graph, node, traced)


def _suits(node: fx.Node) -> bool:
    """A plain 2-d float convolution on the CPU whose image has a known size, or its gradients."""
    arguments: Any = node.args
    if node.target is aten.convolution.default:
        out, weight, stride, transposed = node.meta["val"], *(arguments[i] for i in (1, 3, 6))
    elif node.target is aten.convolution_backward.default:
        out, weight = arguments[0].meta["val"], arguments[2]
        stride, transposed = arguments[4], arguments[7]
    else:
        return False
    if out.device.type != "cpu" or out.dtype not in (torch.float32, torch.float64):
        return False
    if transposed or out.dim() != 4:
        return False
    if any(isinstance(step, fx.Node) or step > _LARGEST_STRIDE for step in stride):
        return False
    return not any(isinstance(s, torch.SymInt) for s in (*out.shape[1:], *weight.meta["val"].shape))


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    """A fake like ``value``, dense with its channels last."""
    return torch_api.fake_in_format(value, torch.channels_last)


def _like_images(value: Any) -> Any:
    """The value of a convolution; or its gradients, of which that of the image is the first."""
    if isinstance(value, torch.Tensor):
        return _channels_last(value)
    image, *others = value
    return type(value)((None if image is None else _channels_last(image), *others))


def _change(node: fx.Node, value: Any, traced: dict[fx.Node, Any]) -> None:
    before = node.meta["val"]
    if not isinstance(value, torch.Tensor) or before.stride() != value.stride():
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
    if not isinstance(target, torch_api.OpOverload):
        return
    name = torch_api.op_name(target)
    if op_kind(target) in (OpKind.VIEW, OpKind.ALIAS) or "view" in name:
        value = None if "strided" in name else _viewed(node)
        if value is None:
            _restore_operands(graph, node, traced)
        else:
            _change(node, value, traced)
            node.meta.update(val=value, of=node.all_input_nodes[0].meta["val"])
    elif torch.Tag.nondeterministic_seeded in target.tags:  # numbers are drawn in memory's order
        _restore_operands(graph, node, traced)
    elif _follows(node, target):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            _change(node, _followed(value), traced)
        else:
            _change(node, type(value)(map(_followed, value)), traced)
    elif target.overloadpacket not in _READERS:
        _restore_operands(graph, node, traced)


def _follows(node: fx.Node, target: torch_api.OpOverload) -> bool:
    if node.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    copies = target in (aten.clone.default, aten._to_copy.default)
    return copies or torch.Tag.pointwise in target.tags or target.overloadpacket in _FOLLOWERS


def _followed(value: Any) -> Any:
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_contiguous()
    return _channels_last(value) if is_image else value


def _viewed(node: fx.Node) -> torch.Tensor | None:
    """The fake of a view of the operands with their new strides; None where there is no such
    view."""
    args: Any = fx.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda n: n.meta["val"])
    try:
        if node.target in _IN_SIZES and not torch_api.can_be_viewed(*args[:2]):
            return None
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
    copy.meta.update({**source.meta, "val": value})
    user.replace_input_with(source, copy)
