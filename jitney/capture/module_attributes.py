"""Attributes of modules: what their namespace holds, what their ``__getattr__`` gives, and what
subclasses of modules compute."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.guard import ABSENT
from jitney.capture.shadows import DictShadow
from jitney.capture.source import Attr, Fixed, ModuleOf, Source

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: What torch's own module classes compute and a guard can ask for again.
_ASKED_AGAIN = (int, float, str, bytes, complex, type(None), type, types.FunctionType,
                types.ModuleType, types.BuiltinFunctionType)  # fmt: skip


def place_of(module: types.ModuleType) -> Source:
    """Where a module is found."""
    name = module.__dict__.get("__name__")
    is_there = isinstance(name, str) and sys.modules.get(name) is module
    return ModuleOf(str(name)) if is_there else Fixed(module)  # ``_io`` is named "io"


def get(interpreter: Interpreter, owner: types.ModuleType, name: str, site: Frame | None) -> Any:
    """``owner.name`` (maybe `Lazy`). ``site`` as for `Interpreter.call`."""
    world, cls = interpreter.world, type(owner)
    if cls.__getattribute__ is not types.ModuleType.__getattribute__:
        raise BreakCapture("module-getattr", f"{cls.__name__} has a __getattribute__")
    if id(owner) not in world.inside:
        world.know(owner, owner, place_of(owner))
    raw = owner.__dict__
    if name == "__dict__":
        return Lazy(raw, Attr(world.inside[id(owner)].source, "__dict__"))
    shadow = world.instance_dict(owner)
    if not isinstance(shadow, DictShadow):
        raise BreakCapture("module-getattr", f"{owner.__name__} was made by the frame")
    is_held = name in raw or dict.__contains__(shadow.inside, name)
    if not is_held and any(name in base.__dict__ for base in cls.__mro__):
        return _of_class(interpreter, owner, name)
    if not is_held and cls is not types.ModuleType:
        return _computed(interpreter, owner, name, shadow)
    value = shadow.get(world, name)
    if value is not ABSENT:
        return value
    if cls is not types.ModuleType:
        raise BreakCapture("module-getattr", f"{owner.__name__}.{name} has been deleted")
    fallback = shadow.get(world, "__getattr__")
    if fallback is not ABSENT:
        return interpreter.call(fallback, (name,), {}, site)
    if name not in raw:
        return interpreter.native(getattr, owner, name)  # it raises
    message = f"module {raw.get('__name__')!r} has no attribute {name!r}"  # the frame deleted it
    raise Raised(AttributeError(message, name=name, obj=owner))


def _of_class(interpreter: Interpreter, owner: types.ModuleType, name: str) -> Any:
    cls = type(owner)
    if name == "__class__" and not any(name in base.__dict__ for base in cls.__mro__[:-1]):
        return cls
    if cls is types.ModuleType:
        raise BreakCapture("module-getattr", f"{owner.__name__}.{name} is computed")
    shadow = interpreter.world.instance_dict(owner)
    assert isinstance(shadow, DictShadow)
    return _computed(interpreter, owner, name, shadow)


def _computed(
    interpreter: Interpreter, owner: types.ModuleType, name: str, shadow: DictShadow
) -> Any:
    """An attribute that a subclass of modules computes: a lazy module imports what it is asked
    for, and keeps it."""
    world = interpreter.world
    try:
        fetched = interpreter.native(getattr, owner, name)
    except Raised:
        raise BreakCapture("module-getattr", f"{owner.__name__}.{name} is asked for") from None
    if name in owner.__dict__:
        return shadow.get(world, name)
    is_trusted = type(owner).__module__.partition(".")[0] == "torch"
    if is_trusted and isinstance(fetched, _ASKED_AGAIN):
        return world.read_lazy(fetched, Attr(world.inside[id(owner)].source, name))
    raise BreakCapture("module-getattr", f"{owner.__name__}.{name} is computed")
