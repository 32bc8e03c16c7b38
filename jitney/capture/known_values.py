"""Values of tensors that are the same on every run, so that a branch on them need not break the
graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.position_values import truth_for_any_size

LARGEST = 1 << 20
_OWN = ("aten", "prims")


#: Comparisons of a number from 0 to 1, by names of torch's functions and methods: the least limit
#: or the greatest one from which on the answer is known, and that answer.
_NOT_BELOW = {"lt": False, "less": False, "ge": True, "greater_equal": True}
_NOT_ABOVE = {"gt": False, "greater": False, "le": True, "less_equal": True}


class _NotKnown(Exception):
    """The value is not the same on every run."""


class _Pure(torch_api.dispatch_mode_class()):  # type: ignore[misc]
    """Refuses random numbers, and ops that are not torch's own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in _OWN:
            raise _NotKnown
        return func(*args, **(kwargs or {}))


def known_truth(recorder: Any, tensor: torch.Tensor) -> bool | None:
    """What a branch on ``tensor`` finds on every run; None where that is not known, or an error."""
    if tensor.numel() != 1:
        return None
    compared = _compared_draw(recorder, tensor)
    if compared is not None:
        return compared
    known = known_value(recorder, tensor)
    return _truth_of_positions(recorder, tensor) if known is None else bool(known)


def _truth_of_positions(recorder: Any, tensor: torch.Tensor) -> bool | None:
    """The answer where it follows from sizes, whatever they are; else None."""
    node = recorder.node_of(tensor)
    if node is None or tensor.device.type == "meta":
        return None
    before = _before(node)
    return None if any(map(recorder.is_written, before)) else truth_for_any_size(before)


def _compared_draw(recorder: Any, tensor: torch.Tensor) -> bool | None:
    """The answer of ``torch.rand([]) < 0.0``, a layer that is never dropped; else None. Limits
    keep their side of 0 and 1 in any dtype they are rounded to."""
    node = recorder.node_of(tensor)
    if node is None or len(node.args) != 2 or node.kwargs:
        return None
    name = str(getattr(node.target, "__name__", node.target)).strip("_")
    draw, limit = node.args
    if not isinstance(draw, fx.Node) or draw.target is not torch.rand or "out" in draw.kwargs:
        return None
    if type(limit) not in (int, float) or recorder.is_written(draw) or recorder.is_written(node):
        return None
    if limit <= 0:
        return _NOT_BELOW.get(name)
    return _NOT_ABOVE.get(name) if limit >= 1 else None


def known_value(recorder: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    """What ``tensor`` holds on every run, computed now; None where inputs, random numbers or
    writes have to do with it, or it takes large tensors."""
    node = recorder.node_of(tensor)
    before = ancestors(node) if node is not None else None
    if (
        before is None
        or tensor.device.type == "meta"
        or any(recorder.is_written(step) for step in before)
    ):
        return None
    values: dict[fx.Node, Any] = {}
    try:
        with _Pure(), torch.no_grad():
            for step in before:
                args, kwargs = fx.map_arg((step.args, step.kwargs), values.__getitem__)
                function = step.target
                if isinstance(function, str):
                    function = getattr(type(args[0]), function)
                values[step] = function(*args, **kwargs)
    except (_NotKnown, RuntimeError):  # the second: the capture's own call will say it
        return None
    return values[before[-1]]


def ancestors(node: fx.Node) -> list[fx.Node] | None:
    """All that ``node`` is computed from, in order, itself last; None where that is an input or
    an attribute, or large."""
    before = _before(node)
    for step in before:
        value = step.meta.get("example_value")
        if step.op not in ("call_function", "call_method"):
            return None
        if isinstance(value, torch.Tensor) and value.numel() > LARGEST:
            return None
    return before


def _before(node: fx.Node) -> list[fx.Node]:
    """All that ``node`` is computed from, in order, itself last."""
    found, todo = {node}, [node]
    while todo:
        new = [n for n in todo.pop().all_input_nodes if n not in found]
        found.update(new)
        todo += new
    return [n for n in node.graph.nodes if n in found]
