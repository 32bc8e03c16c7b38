"""Attribute look-up as CPython's `object`, `type`, `super` and modules do it, with a guard on
every step; `attribute_stores` has stores and deletes.

Look-ups leave presence or absence guards (an instance attribute can shadow a class's method);
Python-level hooks (`__getattr__`, properties, descriptors) are interpreted.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import module_attributes, signatures, tensor_attributes
from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.generators import FrameGenerator, IndexIterator
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import (
    C_METHODS,
    guard_bases,
    is_of_c_code,
    is_slot,
    look_up,
    look_up_own,
    type_lookup,
)
from jitney.capture.shadows import DictShadow
from jitney.capture.source import Attr, Fixed, Source, TypeLookup
from jitney.capture.special_methods import type_name
from jitney.capture.stand_ins import OfInstances
from jitney.capture.symbols import NUMBERS, concrete
from jitney.capture.tracebacks import traceback_of
from jitney.capture.weak_references import callback_of
from jitney.capture.world import PROXIES
from jitney.torch_api import modules

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OF_ALIASES = ("__origin__", "__args__", "__parameters__", "__class__")
SCALARS = (int, float, bool, str, bytes, complex, type(None))
#: What asks for no attribute of the program's: nothing, and the look-up of parameters.
_NO_FALLBACKS = (ABSENT, torch.nn.Module.__getattr__)
LRU = type(functools.lru_cache(lambda: None))
#: What a class's attribute of these gives through the class: itself.
_OWN_SELVES = (property, types.FunctionType, types.BuiltinFunctionType, types.MethodType, LRU)


def source_or_fixed(interpreter: Interpreter, value: Any) -> Source:
    """The source of a value that has one, else the value itself."""
    return interpreter.world.source_of(value) or Fixed(value)


def get_attr(interpreter: Interpreter, owner: Any, name: str, site: Frame | None = None) -> Any:
    """``owner.name`` (maybe `Lazy`). ``site`` as for `Interpreter.call`."""
    cls = type(owner)
    if isinstance(owner, torch.Tensor) and cls not in PROXIES and not torch_api.is_wrapper(owner):
        return tensor_attributes.get(interpreter, owner, name)
    if cls in NUMBERS:  # no method of a symbol's is quite that of the number
        return NUMBERS[cls] if name == "__class__" else get_attr(interpreter, concrete(owner), name)
    if isinstance(owner, types.ModuleType):
        return module_attributes.get(interpreter, owner, name, site)
    if isinstance(owner, type):
        return _class_attr(interpreter, owner, name)
    if cls is super:
        return _super_attr(interpreter, owner, name, site)
    if cls is FrameGenerator:
        return owner.attribute(name)
    if cls is IndexIterator:
        raise BreakCapture("c-call", f"iterator.{name} of an object's items is asked for")
    if cls in PROXIES:
        raise BreakCapture("proxy", "an object is looked at through a weakref.proxy")
    hook = look_up(interpreter, cls, "__getattribute__")
    if not is_python(hook) and not is_slot(hook, "__getattribute__"):
        raise BreakCapture("getattribute", f"{cls.__name__}.__getattribute__ is no function")
    if site is not None and type_lookup(cls, "__getattr__") not in _NO_FALLBACKS:
        site = None  # behind a break in a property nobody would ask the fallback
    try:
        return _found(interpreter, owner, name, hook, site)
    except Raised as raised:
        tell_where(raised.exception, owner, name)
        raise


def tell_where(error: BaseException, owner: Any, name: str) -> None:
    """An `AttributeError` knows which attribute of what there is not."""
    if isinstance(error, AttributeError) and error.name is None is error.obj:
        error.name, error.obj = name, owner


def _found(interpreter: Interpreter, owner: Any, name: str, hook: Any, site: Frame | None) -> Any:
    """The attribute that ``__getattribute__`` gives, or else ``__getattr__``."""
    try:
        if is_python(hook):
            return interpreter.call(hook, (owner, name), {}, site)
        if hook.__objclass__ is not object:
            return _of_c(interpreter, owner, name, hook.__objclass__)
        return generic_get(interpreter, owner, name, site)
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        fallback = look_up(interpreter, type(owner), "__getattr__")
        if fallback is ABSENT:
            raise
    return _fall_back(interpreter, owner, name, fallback, site)


def _of_c(interpreter: Interpreter, owner: Any, name: str, cls: type) -> Any:
    """What the ``__getattribute__`` of a class of C code gives: a method has its function's
    attributes too."""
    if cls is types.MethodType:
        if type_lookup(cls, name) is not ABSENT:
            return generic_get(interpreter, owner, name)
        function = interpreter.world.force(generic_get(interpreter, owner, "__func__"))
        return get_attr(interpreter, function, name)
    if cls is types.GenericAlias and name not in _OF_ALIASES:
        raise BreakCapture("getattribute", f"{name} of what an alias stands for is looked up")
    return generic_get(interpreter, owner, name)


def _fall_back(
    interpreter: Interpreter, owner: Any, name: str, fallback: Any, site: Frame | None
) -> Any:
    """Calls ``__getattr__`` after ``__getattribute__`` has raised."""
    if fallback is torch.nn.Module.__getattr__:
        return _module_member(interpreter, owner, name)
    if is_python(fallback):
        return interpreter.call(fallback, (owner, name), {}, site)
    raise BreakCapture("getattr", f"{type(owner).__name__}.__getattr__ is not Python")


def generic_get(interpreter: Interpreter, owner: Any, name: str, site: Frame | None = None) -> Any:
    """``object.__getattribute__``."""
    world = interpreter.world
    cls = type(owner)
    found = look_up(interpreter, cls, name)
    if found is not ABSENT and is_data(interpreter, found, "__get__"):
        return bind(interpreter, found, owner, cls, name, site)
    value = dict_get(interpreter, world.instance_dict(owner), name)
    if value is not ABSENT:
        return value
    if found is not ABSENT:
        return bind(interpreter, found, owner, cls, name, site)
    raise Raised(missing(owner, name))


def missing(owner: Any, name: str) -> AttributeError:
    """The AttributeError of an object without such an attribute, in CPython's words."""
    return AttributeError(
        f"{type_name(owner)!r} object has no attribute {name!r}", name=name, obj=owner
    )


def dict_get(
    interpreter: Interpreter, namespace: DictShadow | dict[Any, Any] | None, name: Any
) -> Any:
    """A name in an instance's namespace, a key of a dict; ABSENT if it is not there."""
    if namespace is None:
        return ABSENT
    if isinstance(namespace, DictShadow):
        return namespace.get(interpreter.world, name)
    return namespace.get(name, ABSENT)


def is_data(interpreter: Interpreter, found: Any, also: str = "__set__") -> bool:
    """Whether what is found on a class goes before the instance's namespace: it stores or deletes,
    and has the method ``also``, or is just asked the first."""
    cls = type(found)
    if cls is types.FunctionType:
        return False
    if cls is property:
        return True
    stores = any(look_up(interpreter, cls, n) is not ABSENT for n in ("__set__", "__delete__"))
    return stores and (also == "__set__" or look_up(interpreter, cls, also) is not ABSENT)


def _module_member(interpreter: Interpreter, owner: torch.nn.Module, name: str) -> Any:
    """``nn.Module.__getattr__``: parameters, then buffers, then submodules."""
    world = interpreter.world
    namespace = world.instance_dict(owner)
    for table in modules.TABLES:
        members = dict_get(interpreter, namespace, table)
        if members is ABSENT:
            continue
        if type(members) is Lazy:
            members = world.dict_shadow(members.value, members.source)
        else:
            members = world.shadow_inside(members) or members
        value = dict_get(interpreter, members, name)
        if value is not ABSENT:
            return value
    raise Raised(missing(owner, name))


def bind(
    interpreter: Interpreter,
    found: Any,
    owner: Any,
    cls: type,
    name: str,
    site: Frame | None,
) -> Any:
    """What a class attribute gives when read through an instance."""
    kind = type(found)
    if kind is types.FunctionType:
        return types.MethodType(found, owner)
    if isinstance(owner, torch_api.DEVICE_PROPERTIES):
        return found.__get__(owner, cls)
    getter = look_up(interpreter, kind, "__get__")
    if kind is OfInstances:  # of a compiled module: captured, the original is meant
        original = interpreter.world.force(get_attr(interpreter, owner, "_orig_mod"))
        return get_attr(interpreter, original, name, site)
    if getter is property.__get__:
        return _property(interpreter, found, owner, name, site)
    if kind in C_DESCRIPTORS:
        return _c_member(interpreter, found, owner, name)
    if kind in C_METHODS or kind.__name__ in ("_tuplegetter", "instancemethod"):
        if owner is None:  # `__get__` takes it for no owner
            return getattr(None, name)
        return found.__get__(owner, cls)  # the latter two: fields of named tuples, C++ methods
    if kind is staticmethod:
        return _class_value(interpreter, found.__func__, cls, name)
    if kind is classmethod:
        return _class_method(interpreter, found, cls, name)
    if kind is functools.cached_property and found.attrname == name:
        interpreter.world.read(found.func, Fixed(found.func))
        value = interpreter.call(found.func, (owner,), {}, None)
        dict_set(interpreter, owner, name, interpreter.world.force(value))
        return value
    if is_python(getter):
        return interpreter.call(getter, (let_in(interpreter, found), owner, cls), {}, site)
    if kind is LRU:
        return types.MethodType(_class_value(interpreter, found, cls, name), owner)
    if getter is not ABSENT and kind is not types.MethodType:
        raise BreakCapture("descriptor", f"a {kind.__name__} is read")
    return _class_value(interpreter, found, cls, name)


def _class_method(interpreter: Interpreter, found: Any, cls: type, name: str) -> Any:
    """What a classmethod gives to ``cls``; up to Python 3.12 what it wraps may be a descriptor
    itself, a property mostly."""
    function = found.__func__
    value = _class_value(interpreter, function, cls, name)
    getter = look_up(interpreter, type(function), "__get__")
    binds = getter is ABSENT or type(function) in (types.FunctionType, LRU)
    if binds or sys.version_info >= (3, 13):
        return types.MethodType(value, cls)
    if getter is property.__get__ and function.fget is not None:
        return interpreter.call(function.fget, (cls,), {}, None)
    if is_python(getter):
        return interpreter.call(getter, (value, cls, cls), {}, None)
    raise BreakCapture("descriptor", f"a {type(function).__name__} under classmethod is read")


def _property(
    interpreter: Interpreter, found: property, owner: Any, name: str, site: Frame | None
) -> Any:
    getter = found.fget
    if getter is None:  # it raises
        return interpreter.native(property.__get__, found, owner, type(owner))
    if type(getter) is types.FunctionType and id(getter) not in interpreter.world.inside:
        place = Attr(TypeLookup(source_or_fixed(interpreter, owner), name), "fget")
        interpreter.world.know(getter, getter, place)
    return interpreter.call(getter, (owner,), {}, site)


#: What torch's code tells of a tensor made of others without computing one.
_FACTS = frozenset(
    "shape dtype device layout ndim requires_grad is_leaf is_cuda is_cpu __class__ __dict__".split()
)
#: What type variables and aliases compute when they are first asked, by the program's code.
_EVALUATED = ("__bound__", "__constraints__", "__default__", "__value__")


def _c_member(interpreter: Interpreter, found: Any, owner: Any, name: str) -> Any:
    """A slot, or an attribute that C code computes."""
    world = interpreter.world
    known = world.inside.get(id(owner))
    if torch_api.is_wrapper(owner) and name not in _FACTS:
        raise BreakCapture("tensor-subclass", f"{name} of a {type(owner).__name__} is asked for")
    if name == "__class__":
        return type(owner)
    if name == "__dict__":
        if isinstance(namespace := world.instance_dict(owner), DictShadow):
            return Lazy(namespace.original, namespace.source)
        return namespace
    if name == "__annotations__" and known is None and getattr(owner, "__annotate__", None):
        raise BreakCapture("annotations", "annotations of the frame's own are evaluated")
    if name == "__callback__" and known is None:
        return callback_of(owner)
    if name in _EVALUATED and type(owner).__module__ == "typing":
        raise BreakCapture("annotations", f"{name} of a {type(owner).__name__} is evaluated")
    if name == "__traceback__" and (known is None or id(owner) in interpreter.raised_at):
        return traceback_of(interpreter, owner)
    shadow = world.cell(owner) if name == "cell_contents" else None
    if shadow is not None:
        value = shadow.get(world)
        if value is ABSENT:
            raise Raised(ValueError("Cell is empty"))
        return value
    overlay = world.shadows.slots.get((id(owner), name))
    if overlay is not None:
        if overlay[0] is ABSENT:
            raise Raised(AttributeError(name))
        return overlay[0]
    original = known.original if known is not None else owner
    if type(owner) is inspect.Signature and name == "_parameters" and known is not None:
        return signatures.parameters_of(world, known)
    try:
        value = found.__get__(original, type(original))
    except AttributeError as error:
        if known is not None:
            world.guard(Kind.NO_ATTR, known.source, name, name)
        raise Raised(error.with_traceback(None)) from None
    if known is None or isinstance(value, types.BuiltinFunctionType):
        return value
    return world.read_lazy(value, Attr(known.source, name))


def let_in(interpreter: Interpreter, value: Any) -> Any:
    """Lets in an object that was found where a guard holds this very object: what is read of it is
    guarded."""
    return interpreter.world.read(value, Fixed(value))


def _class_value(interpreter: Interpreter, value: Any, cls: type, name: str) -> Any:
    """A value found on a class; the look-up's guard already says it is this very object."""
    if type(value) in SCALARS:
        return value
    source: Source = Fixed(value)
    if isinstance(value, dict | list | set):  # of the base that has it, ``super()`` may ask
        holders = (base for base in cls.__mro__ if base.__dict__.get(name) is value)
        source = Attr(Fixed(next(holders, cls)), name)
    return interpreter.world.read_lazy(value, source)


def _class_attr(interpreter: Interpreter, owner: type, name: str) -> Any:
    try:
        return _of_class(interpreter, owner, name)
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        fallback = look_up(interpreter, type(owner), "__getattr__")
        if fallback is ABSENT:
            raise
    if not is_python(fallback):
        raise BreakCapture("getattr", f"{type(owner).__name__}.__getattr__ is not Python")
    return interpreter.call(fallback, (owner, name), {}, None)


def _of_class(interpreter: Interpreter, owner: type, name: str) -> Any:
    """``type.__getattribute__``, or a metaclass's own."""
    meta = type(owner)
    hook = look_up(interpreter, meta, "__getattribute__")
    if is_python(hook):
        return interpreter.call(hook, (owner, name), {}, None)
    if not is_slot(hook, "__getattribute__"):
        raise BreakCapture("getattribute", f"{meta.__name__}.__getattribute__ is no function")
    on_meta = look_up(interpreter, meta, name)
    if name == "__dict__" and is_heap_type(owner):
        return class_namespace(interpreter, owner)
    if on_meta is not ABSENT and type(on_meta) in C_DESCRIPTORS:
        if name in ("__bases__", "__base__", "__mro__"):
            guard_bases(interpreter, owner)
        return interpreter.native(getattr, owner, name)
    if on_meta is not ABSENT and is_data(interpreter, on_meta, "__get__"):
        return bind(interpreter, on_meta, owner, meta, name, None)
    found = look_up(interpreter, owner, name)
    if issubclass(meta, enum.EnumMeta):
        member = owner.__dict__.get("_member_map_", {}).get(name)
        if member is not None:
            return let_in(interpreter, member)
    if found is not ABSENT:
        return _unbound(interpreter, found, owner, name)
    if on_meta is not ABSENT:
        return bind(interpreter, on_meta, owner, meta, name, None)
    message = f"type object {owner.__name__!r} has no attribute {name!r}"
    raise Raised(AttributeError(message, name=name, obj=owner))


def _unbound(interpreter: Interpreter, found: Any, owner: type, name: str) -> Any:
    """What a class attribute gives when read through a class."""
    kind = type(found)
    if kind is classmethod:
        return _class_method(interpreter, found, owner, name)
    if kind is staticmethod:
        return _class_value(interpreter, found.__func__, owner, name)
    if kind in _OWN_SELVES or kind in C_DESCRIPTORS:
        return _class_value(interpreter, found, owner, name)
    if is_of_c_code(found):
        return interpreter.native(found.__get__, None, owner)
    getter = look_up(interpreter, kind, "__get__")
    if is_python(getter):
        return interpreter.call(getter, (let_in(interpreter, found), None, owner), {}, None)
    if getter is not ABSENT and getter is not property.__get__:
        if not is_of_c_code(getter) or interpreter.native(getter, found, None, owner) is not found:
            raise BreakCapture("descriptor", f"a {kind.__name__} is read")
    return _class_value(interpreter, found, owner, name)


def class_namespace(interpreter: Interpreter, owner: type) -> types.MappingProxyType[str, Any]:
    """``cls.__dict__`` of a class that can change: all of it is guarded and let in."""
    world = interpreter.world
    place = Attr(Fixed(owner), "__dict__")
    world.guard(Kind.KEYS, place, tuple(owner.__dict__))
    members = {}
    for name, value in owner.__dict__.items():
        look_up(interpreter, owner, name)
        members[name] = world.force(_class_value(interpreter, value, owner, name))
    return types.MappingProxyType(members)


def _super_attr(interpreter: Interpreter, owner: Any, name: str, site: Frame | None) -> Any:
    if interpreter.world.source_of(owner) is not None:
        raise BreakCapture("super", "a super object from outside the frame")
    start = owner.__thisclass__
    instance = owner.__self__
    cls = owner.__self_class__
    if name == "__class__":
        return super
    mro = cls.__mro__
    guard_bases(interpreter, cls)
    for base in mro[mro.index(start) + 1 :]:
        found = look_up_own(interpreter, base, name)
        if found is ABSENT:
            continue
        if instance is cls:
            return _unbound(interpreter, found, cls, name)
        return bind(interpreter, found, instance, cls, name, site)
    raise Raised(AttributeError(f"'super' object has no attribute {name!r}"))


# ---------------------------------------------------------------- stores


def dict_set(interpreter: Interpreter, owner: Any, name: str, value: Any) -> None:
    """Puts a name into an instance's namespace."""
    namespace = interpreter.world.instance_dict(owner)
    if namespace is None:
        raise Raised(missing(owner, name))
    if isinstance(namespace, DictShadow):
        namespace.set(interpreter.world, name, value)
    elif interpreter.is_owned(owner):
        namespace[name] = value
    else:
        raise BreakCapture("unknown-object", f"an attribute of a {type(owner).__name__} is set")
