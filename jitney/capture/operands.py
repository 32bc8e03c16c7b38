"""Operators of which an operand's class has the method in Python: the methods of both operands are
asked in CPython's order, C code's among them, and none of them twice."""

from __future__ import annotations

import array
import collections
from collections.abc import Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import callbacks
from jitney.capture.attributes import guard_lookup, know_function, type_lookup
from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.frame import BreakCapture
from jitney.capture.generators import Callback, FrameGenerator, IndexIterator, MethodIterator
from jitney.capture.guard import ABSENT
from jitney.capture.symbols import NUMBERS, SYMBOLS, concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: (whose method, of what, its name)
Attempt = tuple[Any, Any, str]
#: What CPython adds and repeats only where neither operand is a number that answers.
SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque, array.array)
_OF_SEQUENCES = ("__add__", "__mul__", "__rmul__", "__iadd__", "__imul__")
_OURS = (FrameGenerator, IndexIterator, MethodIterator, Callback)
_OF_C = (WrapperDescriptorType, MethodDescriptorType)


def is_tensorish(value: Any) -> bool:
    """Whether torch decides what operators mean for it."""
    return isinstance(value, torch.Tensor) or isinstance(value, SYMBOLS)


def hook_of(interpreter: Interpreter, value: Any, name: str) -> Any:
    """A special method that a class defines in Python, else None; guarded either way."""
    cls = type(value)
    if not is_heap_type(cls) or is_tensorish(value) or isinstance(value, _OURS):
        return None
    found = type_lookup(cls, name)
    guard_lookup(interpreter, cls, name, found, interpreter.world.source_of(value))
    if not is_python(found):
        return None
    know_function(interpreter, found, value, name)
    return found


def of_operator(left: Any, right: Any, name: str, swapped: str) -> list[Attempt]:
    """What ``left operator right`` asks: the right operand first where its class is made from the
    left one's and overrides the swapped method."""
    attempts = [(left, right, name)]
    cls, other = type(left), type(right)
    if cls is not other:
        attempts.append((right, left, swapped))
        own = type_lookup(other, swapped)
        if cls in other.__mro__ and own is not type_lookup(cls, swapped):
            attempts.reverse()
    return attempts


def of_comparison(left: Any, right: Any, name: str, swapped: str) -> list[Attempt]:
    """What a comparison asks: a class made from the left operand's goes first, whatever it
    overrides; operands of one class are both asked."""
    attempts = [(left, right, name), (right, left, swapped)]
    if type(left) is not type(right) and type(left) in type(right).__mro__:
        attempts.reverse()
    return attempts


def are_python(interpreter: Interpreter, attempts: Sequence[Attempt]) -> bool:
    """Whether Python code of the program would be asked."""
    for owner, _, name in attempts:
        if hook_of(interpreter, owner, name) is not None:
            return True
        if name == "__ne__" and hook_of(interpreter, owner, "__eq__") is not None:
            return True
    return False


def ask(interpreter: Interpreter, attempts: Sequence[Attempt]) -> Any:
    """The first answer, or NotImplemented."""
    last = []
    for owner, other, name in attempts:
        if hook_of(interpreter, owner, name) is None and isinstance(owner, SEQUENCES):
            if name in _OF_SEQUENCES:
                last.append((owner, other, name))
                continue
        value = _ask(interpreter, owner, other, name)
        if value is not NotImplemented:
            return value
    for owner, other, name in last:
        value = _ask(interpreter, owner, other, name)
        if value is not NotImplemented:
            return value
    return NotImplemented


def _ask(interpreter: Interpreter, owner: Any, other: Any, name: str) -> Any:
    hook = hook_of(interpreter, owner, name)
    if hook is not None:
        return interpreter.world.force(interpreter.call(hook, (owner, other), {}, None))
    if isinstance(owner, torch.Tensor):  # a number is all that a tensor takes beside tensors
        return NotImplemented
    cls = NUMBERS.get(type(owner), type(owner))
    found = type_lookup(cls, name)
    if found is object.__ne__:
        value = _ask(interpreter, owner, other, "__eq__")
        return value if value is NotImplemented else not interpreter.truth(value)
    if found is ABSENT:
        return NotImplemented
    if not isinstance(found, _OF_C):
        raise BreakCapture("c-call", f"{cls.__qualname__}.{name} is a {type(found).__name__}")
    if isinstance(owner, SEQUENCES):
        callbacks.refuse_hooks(other, ("__index__",))
    return interpreter.native(found, concrete(owner), concrete(other))
