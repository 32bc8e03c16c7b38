"""The only way to look a name up on a class. It is found as CPython finds it; what is found, or
that nothing is, gets a guard. A Python function that is found enters the world, so that its cells,
defaults and attributes are read with guards too."""

from __future__ import annotations

import functools
import os
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.class_flags import is_heap_type
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.source import Attr, Fixed

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType,
             types.ClassMethodDescriptorType)  # fmt: skip
_UNSEEN = object()


def look_up(interpreter: Interpreter, cls: type, name: str) -> Any:
    """What ``name`` resolves to along the class's MRO, unbound; ABSENT if nothing. Leaves a
    guard."""
    attributes = interpreter.world.classes.attributes
    found = attributes.get((cls, name), _UNSEEN)
    if found is _UNSEEN:
        found = attributes[cls, name] = type_lookup(cls, name)
        if is_heap_type(cls):
            interpreter.world.guard(Kind.CLASS_ATTR, Fixed(cls), (name, found), name)
        if type(found) is types.FunctionType:
            know_function(interpreter, found)
    return found


def tensor_class(fake: Any) -> type:
    """``type(tensor)`` as eager would answer for the tensor behind a fake."""
    return torch.nn.Parameter if isinstance(fake, torch.nn.Parameter) else torch.Tensor


def guard_tensor_class(interpreter: Interpreter, fake: Any, name: str) -> Any:
    """What ``name`` is on the class of a tensor. Leaves a guard."""
    cls = tensor_class(fake)
    found = type_lookup(cls, name)
    interpreter.world.guard(Kind.CLASS_ATTR, Fixed(cls), (name, found), name)
    return found


def guard_tensor_operator(interpreter: Interpreter, fake: Any, name: str) -> None:
    """Guards that an operator of tensors is torch's, as it is captured; breaks where it is not."""
    found = guard_tensor_class(interpreter, fake, name)
    if type(found) is types.FunctionType:
        is_torchs = found.__code__.co_filename.startswith(_OF_TORCH)
    else:
        is_torchs = found is ABSENT or isinstance(found, C_METHODS)
    if not is_torchs:
        raise BreakCapture("tensor-operator", f"{name} of tensors was replaced")


_OF_TORCH = os.path.dirname(torch.__file__) + os.sep


def look_up_own(interpreter: Interpreter, cls: type, name: str) -> Any:
    """As `look_up`, in the class's own namespace only."""
    if name in cls.__dict__:
        return look_up(interpreter, cls, name)
    if is_heap_type(cls):
        interpreter.world.guard(Kind.NO_KEY, Attr(Fixed(cls), "__dict__"), name, name)
    return ABSENT


def guard_bases(interpreter: Interpreter, cls: type) -> None:
    """Guards that the class still has the same bases."""
    if is_heap_type(cls):
        interpreter.world.guard(Kind.IS, Attr(Fixed(cls), "__mro__"), cls.__mro__)


def super_of(interpreter: Interpreter, *given: Any) -> Any:
    """``super(cls, value)``, or a TypeError that stands while the value's class has these bases."""
    for value in given[1:]:
        guard_bases(interpreter, type(value))
        if isinstance(value, type):
            guard_bases(interpreter, value)
    return interpreter.native(super, *given)


def know_function(interpreter: Interpreter, function: types.FunctionType) -> None:
    """Lets in a function that existed before the frame and was found where a guard holds it."""
    if not interpreter.is_owned(function):
        interpreter.world.read_lazy(function, Fixed(function))


def type_lookup(cls: type, name: str) -> Any:
    """`look_up` without a guard: for classes of C code, or where one has been left."""
    if not is_heap_type(cls):
        return _static_lookup(cls, name)
    return _lookup(cls, name)


@functools.lru_cache(maxsize=65536)
def _static_lookup(cls: type, name: str) -> Any:
    return _lookup(cls, name)


def _lookup(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        found = base.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            return found
    return ABSENT


def is_slot(value: Any, name: str) -> bool:
    """Whether what was found on a class is C code's own method of that name."""
    return type(value) is types.WrapperDescriptorType and value.__name__ == name


def is_of_c_code(found: Any) -> bool:
    """Whether a special method found on a class is C code's; what is neither that nor a Python
    function (a ``partialmethod``, an object that is called) may run any code of the program."""
    kind = type(found)
    return kind in C_METHODS or kind.__name__ == "instancemethod" and not is_heap_type(kind)


def is_callback(found: Any) -> bool:
    """Whether C code that uses this special method would run code of the program."""
    return not (found is ABSENT or found is None or is_of_c_code(found))
