"""Normalisations a backward pass reads are written as row statistics and pointwise ops of them.

The output of a log-softmax or layer norm is as large as its input; its statistics are two numbers
a row. Taken apart, the split into forward and backward can keep the statistics (and the input,
which it mostly keeps anyway) and compute the output again in the kernel that wants it. Each
formula is the one its lowering uses, so that values stay the same; fusion puts the forward part
back together. Likewise a ReLU's gradient asks the sign of a batch norm's output of its input,
which the norm's own gradient reads beside it; and places in a small plane are kept in 16 bits.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from jitney import torch_api

aten = torch.ops.aten


def expose_statistics(graph: fx.Graph, of_rows: bool = True) -> None:
    """Rewrites, in place, what backward nodes read; a graph without any stays as it is.

    ``of_rows``: the norms and softmax of rows too, which a GPU computes again in less time than it
    takes to read them.
    """
    for node in list(graph.nodes):
        if torch_api.is_symbolic_value(node):
            continue
        if node.target is aten._log_softmax.default and _read_late(node) and of_rows:
            _Writer(graph, node).log_softmax()
        elif node.target is operator.getitem and node.args[1] == 0:
            norm: Any = node.args[0]
            forward = not norm.meta.get("backward")
            if norm.target is aten.native_layer_norm.default and forward and of_rows:
                _Writer(graph, node).layer_norm(norm)
        elif node.target is aten.threshold_backward.default:
            norm = _norm_under_relu(node.args[1])
            if norm is not None and node.args[2] == 0:
                _Writer(graph, node).sign_of_batch_norm(norm)
        elif node.target is aten.max_pool2d_with_indices_backward.default:
            _Writer(graph, node).unpooled()


def _read_late(node: fx.Node) -> bool:
    return any(user.meta.get("backward") for user in node.users)


def _norm_under_relu(node: Any) -> fx.Node | None:
    """The batch norm (in training) whose output is the argument of ``relu``."""
    if not isinstance(node, fx.Node) or node.target is not aten.relu.default:
        return None
    item: Any = node.args[0]
    if item.target is not operator.getitem or item.args[1] != 0:
        return None
    norm: Any = item.args[0]
    known = norm.target is aten._native_batch_norm_legit_functional.default and norm.args[5]
    return norm if known else None


class _Writer:
    """Writes nodes before the one they replace, each with its fake value."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self.graph, self.node = graph, node

    def log_softmax(self) -> None:
        """``(x - max x) - log sum exp(x - max x)``."""
        x, dim, _ = self.node.args
        x = self.cast(x, torch.float32)
        shifted = self.call(aten.sub.Tensor, x, self.call(aten.amax.default, x, [dim], True))
        powers = self.call(aten.exp.default, shifted)
        total = self.call(aten.sum.dim_IntList, powers, [dim], True)
        result = self.call(aten.sub.Tensor, shifted, self.call(aten.log.default, total))
        self.finish(result)

    def layer_norm(self, norm: fx.Node) -> None:
        """``(x - mean) * rstd * weight + bias``; the norm still makes mean and rstd."""
        x, _, weight, bias, _ = norm.args
        result = self.cast(x, torch.float32)
        mean, rstd = (self.item(norm, place) for place in (1, 2))
        result = self.call(aten.mul.Tensor, self.call(aten.sub.Tensor, result, mean), rstd)
        if weight is not None:
            result = self.call(aten.mul.Tensor, result, self.cast(weight, torch.float32))
        if bias is not None:
            result = self.call(aten.add.Tensor, result, self.cast(bias, torch.float32))
        self.finish(result)

    def sign_of_batch_norm(self, norm: fx.Node) -> None:
        """The norm's output in place of its ReLU: it is positive exactly where that is."""
        arguments: Any = norm.args
        x, weight, bias = arguments[:3]
        mean, rstd = (self.by_channel(self.item(norm, place), x) for place in (1, 2))
        if weight is not None:
            weight = self.by_channel(self.cast(weight, torch.float32), x)
            rstd = self.call(aten.mul.Tensor, rstd, weight)
        away = self.call(aten.sub.Tensor, self.cast(x, torch.float32), mean)
        result = self.call(aten.mul.Tensor, away, rstd)
        if bias is not None:
            bias = self.by_channel(self.cast(bias, torch.float32), x)
            result = self.call(aten.add.Tensor, result, bias)
        dtype = x.meta["val"].dtype
        if result.meta["val"].dtype != dtype:
            result = self.call(aten._to_copy.default, result, dtype=dtype)
        self.node.update_arg(1, result)

    def unpooled(self) -> None:
        """Max pooling's gradient: its image, asked for its shape alone, may be what the norm
        before it read; places in a plane of less than 2**15 are kept as i16."""
        arguments: Any = self.node.args
        image, places = arguments[1], arguments[7]
        shape = image.meta["val"].shape
        norm = _norm_under_relu(image)
        if norm is not None:
            x: Any = norm.args[0]
            if x.meta["val"].stride() == image.meta["val"].stride():
                self.node.update_arg(1, x)
        if shape[-1] * shape[-2] < 2**15 and not places.meta.get("backward"):
            kept = self.call(aten._to_copy.default, places, dtype=torch.int16)
            self.node.update_arg(7, self.call(aten._to_copy.default, kept, dtype=torch.int64))

    def by_channel(self, value: fx.Node, x: fx.Node) -> fx.Node:
        """A vector of channels, to be broadcast along dimension 1 of ``x``."""
        shape = [1, -1, *[1] * (x.meta["val"].ndim - 2)]
        return self.call(aten.view.default, value, shape)

    def cast(self, value: Any, dtype: torch.dtype) -> fx.Node:
        """``value`` in at least ``dtype``'s precision."""
        found: fx.Node = value
        if found.meta["val"].dtype.itemsize >= dtype.itemsize:
            return found
        return self.call(aten._to_copy.default, found, dtype=dtype)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.node):
            node = self.graph.call_function(target, args, kwargs)
        values = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        node.meta["origin"] = self.node.meta.get("origin")
        return node

    def item(self, norm: fx.Node, place: int) -> fx.Node:
        """One result of a node that has several, by the node that already picks it if any."""
        known = [u for u in norm.users if u.args[1] == place]
        if not known:
            return self.call(operator.getitem, norm, place)
        first = min(known, key=list(self.graph.nodes).index)
        norm.append(first)
        return first

    def finish(self, result: fx.Node) -> None:
        """Puts ``result`` in the node's place, in the node's dtype and strides (a norm's output is
        contiguous, pointwise ops keep their operand's)."""
        value = self.node.meta["val"]
        if result.meta["val"].dtype != value.dtype:
            result = self.call(aten._to_copy.default, result, dtype=value.dtype)
        result.meta["val"] = value
        self.node.replace_all_uses_with(result)
        self.graph.erase_node(self.node)
