"""Attribute lookup, store and delete, as CPython's `object` does it, with a guard on every step.

Lookups leave presence or absence guards (an instance attribute can shadow a class's method);
Python-level hooks (`__getattr__`, properties, descriptors) are interpreted.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import tensor_attributes
from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.generators import FrameGenerator
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.shadows import DictShadow
from jitney.capture.source import Attr, Fixed, ModuleOf, Source, TypeLookup
from jitney.capture.symbols import NUMBERS, concrete
from jitney.capture.tracebacks import traceback_of
from jitney.capture.world import PROXIES

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType,
             types.ClassMethodDescriptorType)  # fmt: skip
_OF_ALIASES = ("__origin__", "__args__", "__parameters__", "__class__")
SCALARS = (int, float, bool, str, bytes, complex, type(None))
#: What asks for no attribute of the program's: nothing, and the look-up of parameters.
_NO_FALLBACKS = (ABSENT, torch.nn.Module.__getattr__)
LRU = type(functools.lru_cache(lambda: None))


@functools.lru_cache(maxsize=65536)
def _static_lookup(cls: type, name: str) -> Any:
    return _lookup(cls, name)


def _lookup(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        found = base.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            return found
    return ABSENT


def type_lookup(cls: type, name: str) -> Any:
    """What ``name`` resolves to along the class's MRO, unbound; ABSENT if nothing."""
    if not is_heap_type(cls):
        return _static_lookup(cls, name)
    return _lookup(cls, name)


def is_slot(value: Any, name: str) -> bool:
    """Whether what is found on a class is C code's own method of that name."""
    return type(value) is types.WrapperDescriptorType and value.__name__ == name


def source_or_fixed(interpreter: Interpreter, value: Any) -> Source:
    """The source of a value that has one, else the value itself."""
    return interpreter.world.source_of(value) or Fixed(value)


def guard_lookup(
    interpreter: Interpreter, cls: type, name: str, found: Any, source: Source | None
) -> None:
    """What ``name`` resolves to on a class is assumed; once per class and name."""
    if not is_heap_type(cls):
        return
    world = interpreter.world
    key = (cls, name)
    if key in world.lookups:
        return
    world.lookups.add(key)
    if source is None or isinstance(source, Fixed):
        world.guard(Kind.CLASS_ATTR, Fixed(cls), (name, found), name)
    else:
        world.guard(Kind.TYPE_ATTR, source, (name, found), name)


def get_attr(interpreter: Interpreter, owner: Any, name: str, site: Frame | None = None) -> Any:
    """``owner.name`` (maybe `Lazy`). ``site`` as for `Interpreter.call`."""
    cls = type(owner)
    if isinstance(owner, torch.Tensor) and cls not in PROXIES:
        return tensor_attributes.get(interpreter, owner, name)
    if cls in NUMBERS:  # no method of a symbol's is quite that of the number
        return NUMBERS[cls] if name == "__class__" else get_attr(interpreter, concrete(owner), name)
    if isinstance(owner, types.ModuleType):
        return _module_attr(interpreter, owner, name)
    if isinstance(owner, type):
        return _class_attr(interpreter, owner, name)
    if cls is super:
        return _super_attr(interpreter, owner, name, site)
    if cls is FrameGenerator:
        return owner.attribute(name)
    if cls in PROXIES:
        raise BreakCapture("proxy", "an object is looked at through a weakref.proxy")
    hook = type_lookup(cls, "__getattribute__")
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
    """What ``__getattribute__`` gives, else ``__getattr__``."""
    try:
        if is_python(hook):
            return interpreter.call(hook, (owner, name), {}, site)
        if hook.__objclass__ is not object:
            return _of_c(interpreter, owner, name, hook.__objclass__)
        return generic_get(interpreter, owner, name, site)
    except Raised as raised:
        fallback = type_lookup(type(owner), "__getattr__")
        if fallback is ABSENT or not isinstance(raised.exception, AttributeError):
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
    """``__getattr__``, when ``__getattribute__`` has raised."""
    cls = type(owner)
    guard_lookup(interpreter, cls, "__getattr__", fallback, interpreter.world.source_of(owner))
    if fallback is torch.nn.Module.__getattr__:
        return _module_member(interpreter, owner, name)
    if is_python(fallback):
        know_function(interpreter, fallback, owner, "__getattr__")
        return interpreter.call(fallback, (owner, name), {}, site)
    raise BreakCapture("getattr", f"{cls.__name__}.__getattr__ is not Python")


def generic_get(interpreter: Interpreter, owner: Any, name: str, site: Frame | None = None) -> Any:
    """``object.__getattribute__``."""
    world = interpreter.world
    cls = type(owner)
    source = world.source_of(owner)
    found = type_lookup(cls, name)
    guard_lookup(interpreter, cls, name, found, source)
    if found is not ABSENT and is_data(found) and hasattr(type(found), "__get__"):
        return bind(interpreter, found, owner, cls, name, site)
    value = dict_get(interpreter, world.instance_dict(owner), name)
    if value is not ABSENT:
        return value
    if found is not ABSENT:
        return bind(interpreter, found, owner, cls, name, site)
    raise Raised(missing(owner, name))


def missing(owner: Any, name: str) -> AttributeError:
    return AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner
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


def is_data(descriptor: Any) -> bool:
    cls = type(descriptor)
    return cls is property or hasattr(cls, "__set__") or hasattr(cls, "__delete__")


def _module_member(interpreter: Interpreter, owner: torch.nn.Module, name: str) -> Any:
    """``nn.Module.__getattr__``: parameters, then buffers, then submodules."""
    world = interpreter.world
    namespace = world.instance_dict(owner)
    for table in ("_parameters", "_buffers", "_modules"):
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


def know_function(interpreter: Interpreter, function: Any, owner: Any, name: str) -> None:
    """Gives a function found on a known object's class its source."""
    world = interpreter.world
    if id(function) not in world.inside:
        source = world.source_of(owner)
        if source is None or isinstance(source, Fixed):
            place: Source = Fixed(function)
        else:
            place = TypeLookup(source, name)
        world.know(function, function, place)


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
        know_function(interpreter, found, owner, name)
        return types.MethodType(found, owner)
    if isinstance(owner, torch_api.DEVICE_PROPERTIES):
        return found.__get__(owner, cls)
    getter = type_lookup(kind, "__get__")
    if getter is property.__get__:  # a property, or a subclass that reads as one
        return _property(interpreter, found, owner, name, site)
    if kind in C_DESCRIPTORS:
        return _c_member(interpreter, found, owner, name)
    if kind in C_METHODS or kind.__name__ in ("_tuplegetter", "instancemethod"):
        return found.__get__(owner, cls)  # the latter two: fields of named tuples, C++ methods
    if kind is staticmethod:
        return _class_value(interpreter, found.__func__, cls, name)
    if kind is classmethod:
        return _class_method(interpreter, found, cls, cls, name)
    if kind is functools.cached_property:
        interpreter.world.read(found.func, Fixed(found.func))
        value = interpreter.call(found.func, (owner,), {}, None)
        dict_set(interpreter, owner, found.attrname or name, interpreter.world.force(value))
        return value
    if is_python(getter):
        return interpreter.call(getter, (found, owner, cls), {}, site)
    if kind is LRU:
        return types.MethodType(_class_value(interpreter, found, cls, name), owner)
    if getter is not ABSENT and kind is not types.MethodType:
        raise BreakCapture("descriptor", f"a {kind.__name__} is read")
    return _class_value(interpreter, found, cls, name)


def _class_method(interpreter: Interpreter, found: Any, cls: type, base: type, name: str) -> Any:
    """What a classmethod found on ``base`` gives to ``cls``; up to Python 3.12 what it wraps may be
    a descriptor itself, a property mostly."""
    function = found.__func__
    value = _class_value(interpreter, function, base, name)
    getter = type_lookup(type(function), "__get__")
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


def _c_member(interpreter: Interpreter, found: Any, owner: Any, name: str) -> Any:
    """A slot, or an attribute that C code computes."""
    world = interpreter.world
    known = world.inside.get(id(owner))
    if name == "__class__":
        return type(owner)
    if name == "__dict__":
        if isinstance(namespace := world.instance_dict(owner), DictShadow):
            return Lazy(namespace.original, namespace.source)
        return namespace
    if name == "__annotations__" and known is None and getattr(owner, "__annotate__", None):
        raise BreakCapture("annotations", "annotations of the frame's own are evaluated")
    if name == "__traceback__" and known is None:
        return traceback_of(interpreter, owner)
    shadow = world.cell(owner) if name == "cell_contents" else None
    if shadow is not None:
        value = shadow.get(world)
        if value is ABSENT:
            raise Raised(ValueError("Cell is empty"))
        return value
    overlay = world.slots.get((id(owner), name))
    if overlay is not None:
        if overlay[0] is ABSENT:
            raise Raised(AttributeError(name))
        return overlay[0]
    original = known.original if known is not None else owner
    try:
        value = found.__get__(original, type(original))
    except AttributeError as error:
        if known is not None:
            world.guard(Kind.NO_ATTR, known.source, name, name)
        raise Raised(error.with_traceback(None)) from None
    if known is None or isinstance(value, types.BuiltinFunctionType):
        return value
    return world.read_lazy(value, Attr(known.source, name))


def _class_value(interpreter: Interpreter, value: Any, cls: type, name: str) -> Any:
    """A value found on a class; the lookup's guard already says it is this very object."""
    if type(value) in SCALARS or isinstance(value, enum.Enum):
        return value
    source: Source = Fixed(value)
    if isinstance(value, dict | list | set):
        source = Attr(Fixed(cls), name)
    return interpreter.world.read_lazy(value, source)


def _class_attr(interpreter: Interpreter, owner: type, name: str) -> Any:
    try:
        return _of_class(interpreter, owner, name)
    except Raised as raised:
        fallback = type_lookup(type(owner), "__getattr__")
        if not is_python(fallback) or not isinstance(raised.exception, AttributeError):
            raise
    return interpreter.call(fallback, (owner, name), {}, None)


def _of_class(interpreter: Interpreter, owner: type, name: str) -> Any:
    meta = type(owner)
    hook = type_lookup(meta, "__getattribute__")
    if is_python(hook):
        return interpreter.call(hook, (owner, name), {}, None)
    on_meta = type_lookup(meta, name)
    if name == "__dict__" and is_heap_type(owner):
        return class_namespace(interpreter, owner)
    if on_meta is not ABSENT and type(on_meta) in C_DESCRIPTORS:
        return interpreter.native(getattr, owner, name)
    if on_meta is not ABSENT and type(on_meta) is property:
        return interpreter.call(on_meta.fget, (owner,), {}, None)
    if on_meta is not ABSENT and is_data(on_meta) and hasattr(type(on_meta), "__get__"):
        raise BreakCapture("descriptor", f"a {type(on_meta).__name__} of a metaclass is read")
    found = _lookup(owner, name)
    guard_class(interpreter, owner, name, found)
    if issubclass(meta, enum.EnumMeta) and not isinstance(found, classmethod | staticmethod):
        value = interpreter.native(getattr, owner, name)
        if isinstance(value, owner):
            return value
    if found is ABSENT:
        return _meta_attr(interpreter, owner, name, on_meta)
    kind = type(found)
    if kind is classmethod:
        return _class_method(interpreter, found, owner, owner, name)
    if kind is staticmethod:
        return _class_value(interpreter, found.__func__, owner, name)
    if kind in (property, types.FunctionType) or kind in C_DESCRIPTORS:
        return _class_value(interpreter, found, owner, name)
    if kind in C_METHODS or isinstance(found, types.BuiltinFunctionType):
        return interpreter.native(getattr, owner, name)
    getter = type_lookup(kind, "__get__")
    if is_python(getter):
        return interpreter.call(getter, (found, None, owner), {}, None)
    return _class_value(interpreter, found, owner, name)


def guard_class(interpreter: Interpreter, owner: type, name: str, found: Any) -> None:
    """What ``name`` resolves to on a class object itself."""
    if is_heap_type(owner):
        key = (owner, name)
        if key not in interpreter.world.lookups:
            interpreter.world.lookups.add(key)
            interpreter.world.guard(Kind.CLASS_ATTR, Fixed(owner), (name, found), name)


def class_namespace(interpreter: Interpreter, owner: type) -> types.MappingProxyType[str, Any]:
    """``cls.__dict__`` of a class that can change: all of it is guarded and let in."""
    world = interpreter.world
    place = Attr(Fixed(owner), "__dict__")
    world.guard(Kind.KEYS, place, tuple(owner.__dict__))
    members = {}
    for name, value in owner.__dict__.items():
        guard_class(interpreter, owner, name, value)
        members[name] = world.force(_class_value(interpreter, value, owner, name))
    return types.MappingProxyType(members)


def _meta_attr(interpreter: Interpreter, owner: type, name: str, on_meta: Any) -> Any:
    if on_meta is ABSENT:
        message = f"type object {owner.__name__!r} has no attribute {name!r}"
        raise Raised(AttributeError(message, name=name, obj=owner))
    if is_python(on_meta):
        return types.MethodType(on_meta, owner)
    return interpreter.native(getattr, owner, name)


def _module_attr(interpreter: Interpreter, owner: types.ModuleType, name: str) -> Any:
    world = interpreter.world
    if is_python(type_lookup(type(owner), "__getattribute__")):
        raise BreakCapture("module-getattr", f"{type(owner).__name__} has a __getattribute__")
    if id(owner) not in world.inside:
        world.know(owner, owner, ModuleOf(owner.__name__))
    raw = owner.__dict__
    if name == "__dict__":
        return Lazy(raw, Attr(world.inside[id(owner)].source, "__dict__"))
    shadow = world.instance_dict(owner)
    value = dict_get(interpreter, shadow, name) if name in raw or _stored(shadow, name) else ABSENT
    if value is not ABSENT:
        return value
    fetched = interpreter.native(getattr, owner, name)  # a lazy module imports what it is asked
    if name in raw and isinstance(shadow, DictShadow):
        return shadow.get(world, name)
    if isinstance(
        fetched, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType
    ):
        return world.read_lazy(fetched, Fixed(fetched))
    if type(fetched) in SCALARS:
        return world.read_lazy(fetched, Attr(world.inside[id(owner)].source, name))
    raise BreakCapture("module-getattr", f"{owner.__name__}.{name} is computed")


def _stored(shadow: Any, name: str) -> bool:
    return isinstance(shadow, DictShadow) and dict.__contains__(shadow.inside, name)


def _super_attr(interpreter: Interpreter, owner: Any, name: str, site: Frame | None) -> Any:
    if interpreter.world.source_of(owner) is not None:
        raise BreakCapture("super", "a super object from outside the frame")
    start = owner.__thisclass__
    instance = owner.__self__
    cls = owner.__self_class__
    if name == "__class__":
        return super
    mro = cls.__mro__
    for base in mro[mro.index(start) + 1 :]:
        found = base.__dict__.get(name, ABSENT)
        if found is ABSENT:
            continue
        guard_class(interpreter, base, name, found)
        if instance is cls or isinstance(found, staticmethod):
            if isinstance(found, types.FunctionType):
                return _class_value(interpreter, found, base, name)
            if isinstance(found, classmethod):
                return _class_method(interpreter, found, cls, base, name)
            return interpreter.native(getattr, owner, name)
        if type(found) is types.FunctionType:
            _class_value(interpreter, found, base, name)
            return types.MethodType(found, instance)
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
