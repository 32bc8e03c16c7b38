"""Which inputs of a traced graph stay where they are from call to call."""

from __future__ import annotations

from torch import fx


def mark_static(captured: fx.GraphModule, traced: fx.GraphModule) -> None:
    """Copies the marks of the captured graph's placeholders (parameters, buffers, tensors marked
    with ``mark_static_address``) to those of ``traced``, which stand in the same order."""
    given = [n for n in captured.graph.nodes if n.op == "placeholder"]
    inputs = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for node, own in zip(given, inputs, strict=True):
        own.meta["static"] = bool(node.meta.get("static")) or bool(own.meta.get("is_parameter"))
