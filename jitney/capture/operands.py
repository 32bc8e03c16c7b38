"""Operators where the class of an operand defines the method in Python: the methods of both
operands are tried in CPython's order, those of C code among them, and none of them twice."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.frame import BreakCapture
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import guard_tensor_operator, look_up, type_lookup
from jitney.capture.special_methods import class_of, hook_of, type_name
from jitney.capture.symbols import concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: (whose method, of what, its name)
Attempt = tuple[Any, Any, str]
#: What CPython asks of sequences only where neither operand is a number that answers.
_OF_SEQUENCES = ("__add__", "__mul__", "__rmul__", "__iadd__", "__imul__")
_OF_C = (WrapperDescriptorType, MethodDescriptorType)


def of_operator(
    interpreter: Interpreter, left: Any, right: Any, name: str, swapped: str
) -> list[Attempt]:
    """What ``left operator right`` asks: the right operand first where its class is made from the
    left one's and overrides the swapped method."""
    attempts = [(left, right, name)]
    cls, other = class_of(left), class_of(right)
    if cls is not other:
        attempts.append((right, left, swapped))
        if cls in other.__mro__:
            own = look_up(interpreter, other, swapped)
            if own is not look_up(interpreter, cls, swapped):
                attempts.reverse()
    return attempts


def guard_tensors(
    interpreter: Interpreter, left: Any, right: Any, name: str, swapped: str = ""
) -> None:
    """Guards what tensors among the operands are asked."""
    if isinstance(left, torch.Tensor):
        guard_tensor_operator(interpreter, left, name)
    elif isinstance(right, torch.Tensor):
        guard_tensor_operator(interpreter, right, swapped)


def of_comparison(left: Any, right: Any, name: str, swapped: str) -> list[Attempt]:
    """What a comparison asks: a class made from the left operand's goes first, whatever it
    overrides; operands of one class are both asked."""
    attempts = [(left, right, name), (right, left, swapped)]
    cls, other = class_of(left), class_of(right)
    if cls is not other and cls in other.__mro__:
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
        if name in _OF_SEQUENCES and _is_sequences(owner, name):
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


def _is_sequences(owner: Any, name: str) -> bool:
    """Whether the method is one of C code for sequences, not for numbers."""
    if isinstance(owner, torch.Tensor):
        return False
    found = type_lookup(class_of(owner), name)
    return isinstance(found, _OF_C) and not hasattr(found.__objclass__, "__radd__")


def _ask(interpreter: Interpreter, owner: Any, other: Any, name: str) -> Any:
    hook = hook_of(interpreter, owner, name)
    if hook is not None:
        return interpreter.world.force(interpreter.call(hook, (owner, other), {}, None))
    if isinstance(owner, torch.Tensor):  # a number is all that a tensor takes beside tensors
        if hasattr(type(other), "__torch_function__"):
            raise broken(interpreter, f"a {type_name(other)} handles torch's functions")
        return NotImplemented
    cls = class_of(owner)
    found = type_lookup(cls, name)
    if found is object.__ne__:
        value = _ask(interpreter, owner, other, "__eq__")
        return value if value is NotImplemented else not truth_of(interpreter, value)
    if found is ABSENT or isinstance(other, torch.Tensor):
        return NotImplemented
    if not isinstance(found, _OF_C):
        raise broken(interpreter, f"{name} of a {type_name(owner)} is a {type_name(found)}")
    if found is object.__eq__:
        interpreter.world.compared(owner, other)
    if _is_sequences(owner, name) and hook_of(interpreter, other, "__index__") is not None:
        raise broken(interpreter, f"C code would call {type_name(other)}.__index__")
    return interpreter.native(found, concrete(owner), concrete(other))


def truth_of(interpreter: Interpreter, answer: Any) -> bool:
    """The truth of what a method gave."""
    try:
        return interpreter.truth(answer)
    except BreakCapture:
        interpreter.native_broke = True  # the method has been called: break before it
        raise


def broken(interpreter: Interpreter, reason: str) -> BreakCapture:
    """A break before the operator, of which methods may have been asked."""
    interpreter.native_broke = True
    return BreakCapture("operator", reason)
