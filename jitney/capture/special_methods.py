"""Special methods of the program's classes: which a class has in Python, and what CPython takes of
their answers."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.class_flags import is_heap_type, is_of_c, is_python
from jitney.capture.frame import BreakCapture
from jitney.capture.generators import Callback, FrameGenerator, IndexIterator, MethodIterator
from jitney.capture.lookups import is_callback, look_up
from jitney.capture.symbols import NUMBERS, SYMBOLS
from jitney.torch_api import is_wrapper

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Python classes that stand for C code's.
OURS = (FrameGenerator, IndexIterator, MethodIterator, Callback)
#: How objects that are equal only to themselves, and methods, compare.
OF_IDENTITY = (object.__eq__, MethodType.__eq__)


def is_tensorish(value: Any) -> bool:
    """Whether torch decides what operators mean for it."""
    return isinstance(value, torch.Tensor) or isinstance(value, SYMBOLS)


def class_of(value: Any) -> type:
    """A value's class; of a symbol the number's."""
    return NUMBERS.get(type(value), type(value))


def type_name(value: Any) -> str:
    """The name of its class, as CPython's messages have it: with its module for one of C code."""
    if isinstance(value, torch.Tensor):
        return "Tensor"
    if isinstance(value, FrameGenerator):
        return "generator"
    cls = class_of(value)
    dotted = is_of_c(cls) and cls.__module__ != "builtins"
    return f"{cls.__module__}.{cls.__qualname__}" if dotted else cls.__name__


def hook_of(interpreter: Interpreter, value: Any, name: str) -> Any:
    """A special method that a class defines in Python, None where it has none or C code's; guarded
    either way. A break where C code would call another object of the program's for it."""
    cls = type(value)
    tensorish = is_tensorish(value) and not is_wrapper(value)
    if not is_heap_type(cls) or tensorish or isinstance(value, OURS):
        return None
    found = look_up(interpreter, cls, name)
    if is_python(found):
        return found
    if is_callback(found):
        interpreter.native_broke = True  # others may have been called: break before them
        reason = f"{cls.__qualname__}.{name} is a {type(found).__qualname__}"
        raise BreakCapture("special-method", reason)
    return None


def of_type(interpreter: Interpreter, value: Any, name: str, kinds: Any) -> Any:
    """What a special method gave, where CPython takes only ``kinds`` from it; else a break before
    it was asked, so that eager raises its own error."""
    value = interpreter.world.force(value)
    if isinstance(value, kinds):
        return value
    interpreter.native_broke = True
    raise BreakCapture("special-method", f"{name} gives a {type_name(value)}")
