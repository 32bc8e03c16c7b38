"""Attributes of tensors: queries answered from the fake, Python attributes from the real one."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from jitney import torch_api
from jitney.capture.frame import BreakCapture, Raised
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import guard_tensor_class, tensor_class
from jitney.capture.source import Attr, DictItem

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


#: What no guard on a tensor says of it, and its fake does not know: its place in autograd's graph.
_OF_AUTOGRAD = frozenset(("is_leaf", "retains_grad", "output_nr"))


#: What differs between a tensor and its fake.
_OF_OBJECTS = frozenset(("_cdata", "_python_dispatch", "__weakref__", "__getstate__", "__dir__"))


def get(interpreter: Interpreter, fake: Any, name: str) -> Any:
    """``tensor.name``."""
    if name == "__class__":
        return tensor_class(fake)
    found = getattr(tensor_class(fake), name, ABSENT)  # a parameter has some of its own
    guard_tensor_class(interpreter, fake, name)
    if found is ABSENT:
        return _python_attribute(interpreter, fake, name)
    if name in _OF_OBJECTS:
        raise BreakCapture("tensor-attribute", f"{name} of a tensor is read")
    if name in ("grad", "_grad"):
        return _grad(interpreter, fake)
    if isinstance(found, types.FunctionType):
        return types.MethodType(found, fake)
    if isinstance(found, types.MethodDescriptorType | types.WrapperDescriptorType):
        return found.__get__(fake, type(fake))  # FakeTensor overrides some
    if name == "__dict__":
        raise BreakCapture("tensor-dict", "__dict__ of a tensor is read")
    if not hasattr(type(found), "__get__"):  # the class's own: texts
        return found
    if name in _OF_AUTOGRAD and id(fake) in interpreter.world.inside:
        return _place_in_autograd(interpreter, fake, name)
    return interpreter.torch_call(getattr, fake, name)


def _place_in_autograd(interpreter: Interpreter, fake: Any, name: str) -> Any:
    recorder, known = interpreter.recorder, interpreter.world.inside[id(fake)]
    if recorder.in_transform or recorder.is_mutated(fake):
        raise BreakCapture("tensor-attribute", f"{name} of a tensor that a frame changes is read")
    value = getattr(known.original, name)
    if name == "is_leaf" and not known.original.requires_grad:  # which the guards on it say
        return value
    interpreter.world.guard(Kind.EQUALS, Attr(known.source, name), value, name)
    return value


def is_buffer(interpreter: Interpreter, fake: Any) -> bool:
    """``isinstance(tensor, torch.nn.Buffer)``, which asks for an attribute."""
    try:
        return bool(interpreter.world.force(get(interpreter, fake, "_is_buffer")))
    except Raised:
        return False


def _python_attribute(interpreter: Interpreter, fake: Any, name: str) -> Any:
    world = interpreter.world
    known = world.inside.get(id(fake))
    if known is not None:
        namespace = getattr(known.original, "__dict__", {})
        place = Attr(known.source, "__dict__")
        if name in namespace:
            return world.read_lazy(namespace[name], DictItem(place, name))
        world.guard(Kind.NO_KEY, place, name, name)
    cls = tensor_class(fake).__name__
    message = f"{cls!r} object has no attribute {name!r}"
    raise Raised(AttributeError(message, name=name, obj=fake))


def _grad(interpreter: Interpreter, fake: Any) -> Any:
    known = interpreter.world.inside.get(id(fake))
    if known is None:
        if fake.requires_grad and not fake.is_leaf:
            raise BreakCapture("tensor-grad", "grad of a tensor made in the frame is read")
        return None
    if not known.original.is_leaf:
        raise BreakCapture("tensor-grad", "grad of a tensor that is no leaf is read")
    with torch_api.without_function_modes():  # C code may be what asks (`filter`, a generator)
        value = known.original.grad
    return interpreter.world.read(value, Attr(known.source, "grad"))
