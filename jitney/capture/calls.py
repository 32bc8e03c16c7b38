"""Calling anything: Python functions are interpreted, torch is recorded, C code as policy says."""

from __future__ import annotations

import collections
import functools
import re
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from jitney import torch_api
from jitney.capture import (
    builtin_calls,
    builtin_classes,
    frame_variables,  # noqa: F401  (fills the table of builtin_calls)
    module_calls,
    numpy_calls,
    operator_calls,
    policy,
    polyfills,
    searches,
    special_methods,
    torch_calls,
)
from jitney.capture.attributes import LRU, let_in
from jitney.capture.c_methods import bound, rebind
from jitney.capture.cached_functions import call_cached
from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.finalizers import refuse_finalizer
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.generators import FrameGenerator
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.lookups import is_of_c_code, look_up
from jitney.capture.present_arguments import call_native
from jitney.capture.scripted_functions import call_scripted
from jitney.capture.source import Attr, DictItem, Fixed, Referent
from jitney.capture.stand_ins import disabled_because, is_disabled, mark_of
from jitney.capture.subscripts import LAZY_METHODS, LazyMethod, default_item, dict_item, key
from jitney.capture.substitutes import substitute_of
from jitney.capture.symbols import concrete
from jitney.capture.world import NUMPY_FUNCTIONS

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_PLACEHOLDER = getattr(functools, "Placeholder", None)  # from 3.14 on
C_CALLABLES = (
    types.BuiltinFunctionType,
    type(re.compile("").match),  # a method that is given the class which defines it
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


def call(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Calls ``function``; see `Interpreter.call`. Arguments may be `Lazy`."""
    substitute = substitute_of(function)
    if substitute is not None:
        interpreter.world.read(substitute, Fixed(substitute))
        return call(interpreter, substitute, args, kwargs, site)
    kind = type(function)
    if kind is types.FunctionType:
        return call_function(interpreter, function, args, kwargs, site)
    if kind is types.MethodType:
        if type(function.__self__) is FrameGenerator:  # send, throw, close: our own code
            values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
            return interpreter.native(function, *values, **keywords)
        return call(interpreter, function.__func__, (function.__self__, *args), kwargs, site)
    if kind in C_CALLABLES:
        return call_c(interpreter, function, args, kwargs, site)
    if isinstance(function, type):
        return call_class(interpreter, function, args, kwargs, site)
    if isinstance(function, torch.nn.Module):
        return module_calls.call_module(interpreter, function, args, kwargs, site)
    if kind is functools.partial:
        return _call_partial(interpreter, function, args, kwargs, site)
    if kind is LRU:
        return call_cached(interpreter, function, args, kwargs, site)
    if kind is LazyMethod:
        return function.call(interpreter, args, kwargs)
    if kind is torch.jit.ScriptFunction:
        return call_scripted(interpreter, function, args, kwargs, site)
    if isinstance(function, torch_api.OP_TYPES):
        return torch_calls.call_leaf(interpreter, function, args, kwargs)
    if isinstance(function, weakref.ref):
        return _call_weakref(interpreter, function)
    special = torch_calls.special_object(function)
    if special is not None:
        return special(interpreter, function, args, kwargs, site)
    return _call_instance(interpreter, function, args, kwargs, site)


def _call_weakref(interpreter: Interpreter, reference: Any) -> Any:
    source = interpreter.world.source_of(reference)
    if source is None:
        return reference()
    return interpreter.world.read(reference(), Referent(source))


def _call_instance(
    interpreter: Interpreter, owner: Any, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    cls = type(owner)
    found = look_up(interpreter, cls, "__call__")
    if is_python(found):
        return call_function(interpreter, found, (owner, *args), kwargs, site)
    getter = operator_calls.GETTERS.get(cls)
    if getter is not None:
        return getter(interpreter, owner, args, kwargs)
    if policy.is_pure_callable(owner):
        return call_native(interpreter, owner, args, kwargs)
    if isinstance(owner, NUMPY_FUNCTIONS):
        return numpy_calls.call_function(interpreter, owner, args, kwargs)
    if found is ABSENT:
        raise BreakCapture("not-callable", f"a {cls.__name__} is called")
    raise BreakCapture("c-call", f"a {cls.__module__}.{cls.__qualname__} object is called")


def _call_partial(
    interpreter: Interpreter, partial: Any, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    world = interpreter.world
    source = world.source_of(partial)
    function, before, keywords = partial.func, partial.args, partial.keywords
    if source is not None:
        function = world.read(function, Attr(source, "func"))
        before = world.read(before, Attr(source, "args"))
        keywords = world.read(keywords, Attr(source, "keywords"))
    values = _places_filled(interpreter, partial, before, args)
    return call(interpreter, function, values, {**keywords, **kwargs}, site)


def _places_filled(interpreter: Interpreter, partial: Any, before: Any, args: Any) -> Any:
    """The positional arguments of a partial, with those that the call gives for the places it left
    out (from Python 3.14 on)."""
    if _PLACEHOLDER is None:
        return (*before, *args)
    for value in before:
        if type(value) is Lazy:  # none that was left out
            interpreter.world.guard(Kind.TYPE, value.source, type(value.value))
    places = [place for place, value in enumerate(partial.args) if value is _PLACEHOLDER]
    if len(args) < len(places):
        wanted = f"expected at least {len(places)}, got {len(args)}"
        raise Raised(TypeError(f"missing positional arguments in 'partial' call; {wanted}"))
    values = list(before)
    for place, value in zip(places, args):
        values[place] = value
    return (*values, *args[len(places) :])


def call_function(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
    link: str = "push",
) -> Any:
    """Calls a Python function: inlined, or as the policy table says."""
    if function.__dict__:
        mark = mark_of(function)
        if mark:
            place = DictItem(Attr(interpreter.source_or_fixed(function), "__dict__"), mark)
            original = interpreter.world.read(function.__dict__[mark], place)
            if type(original) is types.MethodType:
                return interpreter.call(original, args, kwargs, site)
            return call_function(interpreter, original, args, kwargs, site, link)
        if is_disabled(function):
            raise BreakCapture("disabled", *disabled_because(function))
    if torch_api.is_allowed_in_graph(function):
        return torch_calls.call_opaque(interpreter, function, args, kwargs)
    handler = policy.special_function(function)
    if handler is not None:
        return handler(interpreter, function, args, kwargs, site)
    if policy.is_torch_leaf(function) and not torch_calls.overriding(interpreter, args, kwargs):
        return torch_calls.call_leaf(interpreter, function, args, kwargs)
    return interpreter.call_python(function, args, kwargs, link if site is not None else None)


def call_c(
    interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    """Calls C code: by code of ours in its place, as a torch call, for real where it is known to be
    pure. Breaks otherwise."""
    function = _bound_inside(interpreter, function)
    if type(function) is LazyMethod:
        return function.call(interpreter, args, kwargs)
    if isinstance(function, types.MethodWrapperType) and function.__objclass__ is object:
        args = (function.__self__, *args)
        function = getattr(object, function.__name__)
    handler = builtin_calls.handler_of(function)
    if handler is not None:
        return handler(interpreter, function, args, kwargs, site)
    if function == type.__new__:
        raise BreakCapture("class-statement", "a class is made")
    if function.__name__ == "__call__" and _objclass(function) in _CALLING:
        return _call_behind(interpreter, function, args, kwargs, site)
    if _objclass(function) in _REFUSED.get(function.__name__, ()):
        raise BreakCapture("c-call", f"{policy.name_of(function)} is called")
    if builtin_calls.is_list_sort(function) and kwargs.get("key") is not None:
        call_args = (function.__self__, kwargs["key"], kwargs.get("reverse", False))
        return interpreter.call_python(polyfills.sort_, call_args, {}, None)
    if torch_calls.is_torch_c(function):
        return torch_calls.call_c(interpreter, function, args, kwargs)
    if function.__name__ in ("__getitem__", "__missing__") and len(args) == 2:
        kind, owner = getattr(function, "__objclass__", None), interpreter.world.force(args[0])
        if kind in (dict, collections.defaultdict) and isinstance(owner, kind):
            return call_c(interpreter, bound(function, owner), args[1:], kwargs, site)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, dict) and function.__name__ == "__getitem__" and len(args) == 1:
        return dict_item(interpreter, owner, key(interpreter, interpreter.world.force(args[0])))
    if isinstance(owner, collections.defaultdict) and function.__name__ == "__missing__":
        return default_item(interpreter, owner, interpreter.world.force(*args))
    if isinstance(owner, np.number | np.bool_):
        return numpy_calls.call_method(interpreter, function, args, kwargs)
    if searches.searches(interpreter, function, args) and not kwargs:
        return searches.search(interpreter, function, args)
    if getattr(function, "__module__", "") == "math" and not kwargs:
        symbol = interpreter.recorder.symbols.of_math(function, forced(interpreter, args))
        if symbol is not None:
            return symbol
    is_own = owner is not None and interpreter.is_owned(owner)
    if policy.is_pure(function) or (is_own and policy.copies_state(function)):
        return call_native(interpreter, function, args, kwargs)
    raise BreakCapture("c-call", f"{policy.name_of(function)} is not known to be free of effects")


#: What ``__call__`` of C code hands on to.
_CALLING = (type, types.FunctionType, types.MethodType, staticmethod)
#: Methods of C code that run the program's own code, or change or tell of its classes.
_REFUSED: dict[str, tuple[type, ...]] = {
    "__get__": (property,),
    "__set__": (property,),
    "__delete__": (property,),
    "__getattribute__": (type,),
    "__setattr__": (type,),
    "__delattr__": (type,),
    "__subclasses__": (type,),
}


def _objclass(function: Any) -> Any:
    """The class whose method a C function is; None for others."""
    return getattr(function, "__objclass__", None)


def _call_behind(
    interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    """What ``__call__`` of a function, method or class calls."""
    if isinstance(function, types.MethodWrapperType):
        args = (function.__self__, *args)
    owner, *rest = args
    owner = interpreter.world.force(owner)
    if not isinstance(owner, type):
        return call(interpreter, owner, tuple(rest), kwargs, site)
    if builtin_classes.class_handler(owner) is not None or policy.is_native_class(owner):
        return call_class(interpreter, owner, tuple(rest), kwargs, site)
    return _instantiate(interpreter, owner, tuple(rest), kwargs, site)


def _bound_inside(interpreter: Interpreter, function: Any) -> Any:
    """A bound C method from outside, bound to what the frame sees in its owner's place."""
    source = interpreter.world.source_of(function)
    owner = getattr(function, "__self__", None)
    if source is None or owner is None or isinstance(owner, types.ModuleType | type):
        return function
    inside = interpreter.world.read_lazy(owner, Attr(source, "__self__"))
    if type(inside) is Lazy and function.__name__ in LAZY_METHODS.get(type(owner), ()):
        return LazyMethod(inside, function.__name__)
    inside = interpreter.world.force(inside)
    return function if inside is owner else rebind(function, concrete(inside))


# ---------------------------------------------------------------- classes


def call_class(
    interpreter: Interpreter, cls: type, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    """``cls(*args)``."""
    handler = builtin_classes.class_handler(cls)
    if handler is not None:
        return handler(interpreter, cls, args, kwargs, site)
    meta = type(cls)
    hook = look_up(interpreter, meta, "__call__")
    if is_python(hook) and not policy.is_plain_metaclass(meta):
        return call_function(interpreter, hook, (cls, *args), kwargs, site)
    if not isinstance(hook, types.WrapperDescriptorType | types.FunctionType):
        return _call_hook(interpreter, meta, hook, args, kwargs, site)
    if policy.is_native_class(cls):
        made = call_native(interpreter, cls, args, kwargs)
        if cls is types.FunctionType:
            interpreter.owned[id(made)] = made
        return made
    if torch_api.is_wrapper_class(cls):
        return _instantiate(interpreter, cls, args, kwargs, site)
    if issubclass(cls, torch.Tensor) or isinstance(cls, type(torch.FloatTensor)):
        return torch_calls.call_tensor_class(interpreter, cls, args, kwargs)
    if issubclass(cls, np.number | np.bool_):
        return numpy_calls.make_number(interpreter, cls, args, kwargs)
    return _instantiate(interpreter, cls, args, kwargs, site)


def _call_hook(
    interpreter: Interpreter, meta: type, hook: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """A metaclass's ``__call__`` that is not a method: that of a `typing.TypedDict` is `dict`."""
    if hasattr(type(hook), "__get__"):
        raise BreakCapture("c-class", f"{meta.__qualname__}.__call__ is a {type(hook).__name__}")
    return interpreter.call(let_in(interpreter, hook), tuple(args), kwargs, site)


def _instantiate(
    interpreter: Interpreter, cls: type, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    new = look_up(interpreter, cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    init = look_up(interpreter, cls, "__init__")
    if not is_heap_type(cls) and not is_python(init):
        raise BreakCapture("c-class", f"{cls.__module__}.{cls.__qualname__} is constructed")
    if not is_python(init) and not is_of_c_code(init):
        raise BreakCapture("special-method", f"{cls.__qualname__}.__init__ is no function")
    if is_python(new):
        made = call_function(interpreter, new, (cls, *args), kwargs, None)
        if not isinstance(made, cls):
            return made
        if type(made) is not cls:
            init = look_up(interpreter, type(made), "__init__")
    else:
        made = new_instance(interpreter, cls, new, args, kwargs)
    if is_python(init):
        if site is not None:
            site.stack.append(made)
        said = call_function(interpreter, init, (made, *args), kwargs, site, "drop")
        if site is not None:
            site.stack.pop()
        special_methods.of_type(interpreter, said, "__init__", type(None))
    elif init is not object.__init__:
        call_native(interpreter, init, (made, *args), kwargs)
    return made


def new_instance(
    interpreter: Interpreter,
    cls: type,
    new: Any,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """``cls.__new__`` of a C base: object, a container, an exception."""
    refuse_finalizer(interpreter, cls)
    interpreter.world.refuse_disguise(cls)
    if issubclass(cls, type):
        raise BreakCapture("class-statement", f"a {cls.__qualname__} is made, which is a class")
    if new is object.__new__:
        if (args or kwargs) and look_up(interpreter, cls, "__init__") is object.__init__:
            raise BreakCapture("arguments", f"{cls.__name__}() takes no arguments")
        made = interpreter.native(object.__new__, cls)
    elif policy.is_pure_new(new):
        if issubclass(cls, dict | list | set | torch.nn.Module):
            made = interpreter.native(new, cls)
        else:
            values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
            made = interpreter.native(new, cls, *values, **keywords)
    else:
        raise BreakCapture("c-class", f"{cls.__module__}.{cls.__qualname__} is constructed")
    interpreter.owned[id(made)] = made
    return made
