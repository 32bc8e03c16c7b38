"""A tensor whose own gradient a program asks for is a graph's last word, not one on its way.

All results of a graph come from one node of autograd's: what goes from one of them to the next
passes no hook and is no gradient that autograd can tell. Where a hook is put on a tensor that
others were made from, its gradient kept or asked for, the graph ends behind that tensor instead.
"""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.frame import BreakCapture, Lazy, Restart

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_METHODS = ("register_hook", "retain_grad", "backward")


def break_behind(vm: Interpreter, cause: BreakCapture) -> None:
    """Raises Restart where what ``cause`` breaks before asks for the gradient of a tensor in the
    middle of the graph: capture is to break behind the first such tensor."""
    if cause.kind != "backward" and cause.reason.split("(")[0] not in _METHODS:
        return
    steps = [
        vm.recorder.made_at[node]
        for tensor in _tensors(vm, vm.broken_frames[-1].saved)
        if (node := vm.recorder.node_of(tensor)) in vm.recorder.made_at
        if tensor.requires_grad and any(map(_is_differentiated, node.users))
    ]
    if steps:
        raise Restart(min(steps) + 1, cause)


def _is_differentiated(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def _tensors(vm: Interpreter, value: Any) -> Iterator[torch.Tensor]:
    """Those that a call is given: in lists, tuples, dicts and views of their values, or as a
    method's object. Of a list from outside those that the frame has looked at, or put there."""
    if type(value) is Lazy:
        known = vm.world.outside.get(id(value.value))
        value = None if known is None else known.inside
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | ValuesView):
        for item in value:
            yield from _tensors(vm, item)
    elif type(value) is dict:
        yield from _tensors(vm, [*value.values()])
    elif isinstance(getattr(value, "__self__", None), torch.Tensor):
        yield value.__self__
