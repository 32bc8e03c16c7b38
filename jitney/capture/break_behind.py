"""Ends the graph behind a tensor whose own gradient the program asks for.

All results of a graph come from one node of autograd. What flows from one of them to the next
passes no hook, and autograd has no gradient for it. So where a hook is put on a tensor that others
were made from, or its gradient is kept or asked for, the graph ends behind that tensor, or behind
the last write to it that autograd has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, ValuesView
from itertools import takewhile
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.edit_code import earliest_needed, list_code
from jitney.capture.frame import BreakCapture, Frame, Lazy, Restart
from jitney.capture.instructions import read_instructions
from jitney.capture.look_ahead import look_ahead

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter
    from jitney.capture.record import Recorder

_METHODS = ("register_hook", "retain_grad", "backward")
_METHOD_KINDS = (MethodType, BuiltinMethodType)


def break_behind(vm: Interpreter, cause: BreakCapture) -> None:
    """Raises Restart where what ``cause`` breaks before asks for the gradient of a tensor in the
    middle of the graph: capture is to break behind the first such tensor. Where that is a hook, or
    a gradient to be kept, behind the first that the program holds and may ask for next: it is kept
    beside those that were made from it, otherwise."""
    method = cause.reason.split("(")[0]
    if cause.kind != "backward" and method not in _METHODS:
        return
    tensors = [*_tensors(vm, *vm.broken_frames[-1].saved)]
    if method in ("register_hook", "retain_grad"):
        tensors += [t for frame in vm.broken_frames for t in held_by(vm, frame)]
    steps = [step for t in tensors if (step := _last_step(vm.recorder, t)) is not None]
    if steps:
        raise Restart(min(steps) + 1, cause)


def _last_step(recorder: Recorder, tensor: torch.Tensor) -> int | None:
    """The step that made ``tensor``, or wrote to it last as autograd sees it, where others with
    gradients were made from it afterwards."""
    node = recorder.node_of(tensor)
    if node is None or not tensor.requires_grad or tensor.is_leaf:
        return None
    users: Iterable[torch.fx.Node] = node.users
    whole = torch_api.whole_of(tensor)
    writes = [n for n, written in recorder.seen_writes if torch_api.whole_of(written) is whole]
    if writes:
        node, memory = writes[-1], torch_api.memory_of(tensor)
        later = list(takewhile(lambda n: n is not node, reversed(recorder.main.nodes)))
        alike = {known for fake, known in recorder.nodes.values() if _lies_in(fake, memory)}
        users = [n for n in later if alike.intersection(n.all_input_nodes)]
    return recorder.made_at.get(node) if any(map(_is_differentiated, users)) else None


def _lies_in(value: Any, memory: int) -> bool:
    return isinstance(value, torch.Tensor) and torch_api.memory_of(value) == memory


def _is_differentiated(node: torch.fx.Node) -> bool:
    """Whether gradients may go through it: also where it writes, with no result (`x[0] = y`)."""
    return node.meta.get("example_value") is None or has_gradient(node)


def has_gradient(node: torch.fx.Node) -> bool:
    """Whether a result of the node requires grad."""
    value = node.meta.get("example_value")
    parts = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)


def held_by(vm: Interpreter, frame: Frame) -> Iterator[torch.Tensor]:
    """What ``frame`` has on its stack, and in names that it reads from here on."""
    names = names_read_next(frame)
    named = [value for name, value in frame.locals.items() if name in names]
    return _tensors(vm, *named, *frame.stack)


def names_read_next(frame: Frame) -> set[Any]:
    """The names that ``frame`` may read from here on."""
    listing = list_code(frame.code)
    first = max(0, earliest_needed(frame.code)[listing.index_at(frame.current.offset)])
    later = [i for i in read_instructions(frame.code) if i.offset >= listing.offsets[first]]
    return {i.argval for i in later if i.opname.startswith("LOAD_")}


def _tensors(vm: Interpreter, *values: Any) -> Iterator[torch.Tensor]:
    """Those among ``values``: in lists, tuples, dicts and views of their values, in what goes over
    them, or as a method's object. Of a list from outside those that the frame has looked at, or put
    there. Runs no code of the program."""
    left, seen = [*values], set()
    while left:
        value = left.pop()
        kind = type(value)
        if kind is Lazy:
            known = vm.world.outside.get(id(value.value))
            left += [] if known is None else [known.inside]
        elif issubclass(kind, torch.Tensor):
            yield value
        elif kind in _METHOD_KINDS:
            left.append(value.__self__)
        elif id(value) not in seen:
            seen.add(id(value))
            left += _items(kind, value)


def _items(kind: type, value: Any) -> Iterable[Any]:
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if kind is dict:
        return [*value.values()]
    if issubclass(kind, ValuesView):
        return [*value]
    return look_ahead([value])[0] or ()
