"""Special methods of the program's classes, asked in CPython's order, each of them once.

Where neither side has one in Python, C code decides by itself (`operators`); where one has, every
method is asked here, those of C code as well: C code would call the Python ones again.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import callbacks
from jitney.capture.attributes import guard_lookup, is_python, know_function, type_lookup
from jitney.capture.class_flags import is_heap_type
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.generators import FrameGenerator
from jitney.capture.guard import ABSENT
from jitney.capture.symbols import NUMBERS, SYMBOLS, concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_WHOLE = (int, torch.SymInt)
_NUMBERS = (int, float, complex, *SYMBOLS)
#: Whose ``+`` and ``*`` come after what numbers would do.
_OF_SEQUENCES = ("__add__", "__mul__", "__rmul__", "__iadd__", "__imul__")


def is_tensorish(value: Any) -> bool:
    """Whether torch decides what operators mean for it."""
    return isinstance(value, torch.Tensor) or isinstance(value, SYMBOLS)


def type_name(value: Any) -> str:
    """The name of its class, as CPython's messages have it."""
    if isinstance(value, torch.Tensor):
        return "Tensor"
    if isinstance(value, FrameGenerator):
        return "generator"
    return NUMBERS.get(type(value), type(value)).__name__


def hook_of(interpreter: Interpreter, value: Any, name: str) -> Any:
    """A special method that a class defines in Python, guarded; else None."""
    cls = type(value)
    if not is_heap_type(cls) or is_tensorish(value) or isinstance(value, FrameGenerator):
        return None
    found = type_lookup(cls, name)
    if not is_python(found):
        return None
    guard_lookup(interpreter, cls, name, found, interpreter.world.source_of(value))
    know_function(interpreter, found, value, name)
    return found


def has_python(interpreter: Interpreter, value: Any, names: Sequence[str]) -> bool:
    """Whether its class has one of these methods in Python."""
    return any(hook_of(interpreter, value, name) is not None for name in names)


def ask_both(interpreter: Interpreter, left: Any, right: Any, names: tuple[str, str]) -> Any:
    """The ``left`` side's method of the first name or the other one's of the second; which is asked
    first if its class is derived. NotImplemented if both refuse."""
    name, swapped = names
    compares = not swapped.startswith("__r")
    attempts = [(left, name, right)]
    ours, theirs = type(left), type(right)
    if compares or ours is not theirs:
        attempts.append((right, swapped, left))
        if ours is not theirs and any(base is ours for base in theirs.__mro__):
            found = type_lookup(theirs, swapped)
            if compares or found not in (ABSENT, type_lookup(ours, swapped)):
                attempts.reverse()
    for owner, method, other in attempts:
        value = ask(interpreter, owner, method, other)
        if value is not NotImplemented:
            return value
    return NotImplemented


def ask(interpreter: Interpreter, owner: Any, name: str, other: Any) -> Any:
    """What a method of two operands says, Python's or C code's; NotImplemented if there is none."""
    if is_tensorish(owner):
        return _ask_torch(interpreter, owner, name, other)
    hook = hook_of(interpreter, owner, name)
    if hook is not None:
        return interpreter.world.force(interpreter.call(hook, (owner, other), {}, None))
    found = type_lookup(type(owner), name)
    if found is ABSENT:
        return NotImplemented
    if found is object.__ne__:
        value = ask(interpreter, owner, "__eq__", other)
        return value if value is NotImplemented else not interpreter.truth(value)
    if not isinstance(found, types.WrapperDescriptorType | types.MethodDescriptorType):
        raise BreakCapture("operator", f"{name} of a {type_name(owner)} is a {type_name(found)}")
    if name in _OF_SEQUENCES and not hasattr(found.__objclass__, "__radd__"):
        return NotImplemented
    if isinstance(other, torch.Tensor):
        return NotImplemented
    if found is object.__eq__:
        interpreter.world.compared(owner, other)
    held = [x for x in (owner, other) if isinstance(x, callbacks.CONTAINERS)]
    callbacks.refuse_python(interpreter, held, callbacks.COMPARISONS)
    return interpreter.native(found, owner, concrete(other))


def _ask_torch(interpreter: Interpreter, owner: Any, name: str, other: Any) -> Any:
    """A tensor's or a symbol's: both know numbers alone, of what has methods in Python."""
    if isinstance(owner, torch.Tensor) and hasattr(type(other), "__torch_function__"):
        raise BreakCapture("operator", f"a {type_name(other)} handles torch's functions")
    if not isinstance(other, _NUMBERS):
        return NotImplemented
    raise BreakCapture("operator", f"a tensor or a size meets a {type_name(other)}")


def of_type(interpreter: Interpreter, value: Any, name: str, kinds: Any) -> Any:
    """What a special method gave, where CPython takes only ``kinds`` from it; else a break before
    it was asked, so that eager raises its own error."""
    value = interpreter.world.force(value)
    if isinstance(value, kinds):
        return value
    interpreter.native_broke = True
    raise BreakCapture("special-method", f"{name} gives a {type_name(value)}")


def call_length(interpreter: Interpreter, hook: Any, value: Any, site: Frame | None) -> Any:
    """``len(value)`` by its Python method."""
    length = of_type(interpreter, interpreter.call(hook, (value,), {}, site), "__len__", _WHOLE)
    if type(length) is bool or length < 0 or type(length) is int and length > sys.maxsize:
        return of_type(interpreter, length, "__len__", ())
    return length
