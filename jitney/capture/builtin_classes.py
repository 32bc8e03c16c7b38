"""Builtin classes that are called: their instances must be eager's although tensors are fakes."""

from __future__ import annotations

import collections.abc
import contextlib
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import callbacks, operators, polyfills, subscripts
from jitney.capture.answers import checked
from jitney.capture.builtin_calls import Handler
from jitney.capture.cpython import TUPLES_ASK_FOR_LENGTHS
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame, Raised, Unread
from jitney.capture.functions import cell_get
from jitney.capture.generators import Callback, FrameGenerator, Predicate
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import super_of, tensor_class, type_lookup
from jitney.capture.present_arguments import call_native
from jitney.capture.special_methods import hook_of
from jitney.capture.symbols import (
    NUMBERS,
    SYMBOLS,
    concrete,
    concrete_key,
    concrete_keys,
    counted,
)
from jitney.capture.weak_references import is_plain_class, make_reference

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_CLASSES: dict[type, Handler] = {}
_BYTES = (str, bytes, bytearray, int, *SYMBOLS)


def class_handler(cls: type) -> Handler | None:
    """Our own way to construct a builtin class, if there is one."""
    return _CLASSES.get(cls)


def _class(*classes: type) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for cls in classes:
            _CLASSES[cls] = handler
        return handler

    return register


@_class(torch.autograd.profiler.record_function)
def _profiler_label(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """Labels are for eager's profile; a graph has its own names."""
    return interpreter.call(contextlib.nullcontext, (), {}, site)


@_class(torch_api.FUNCTIONS_OFF)
def _functions_off(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """A scope in which no ``__torch_function__`` is asked, within what one does."""
    if not interpreter.overrides:
        raise BreakCapture("c-class", f"{cls.__name__} is constructed")
    return interpreter.call(polyfills.FunctionsOff, (), {}, None)


@_class(type)
def _type(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if len(args) != 1 or kwargs:
        raise BreakCapture("class-statement", "a class is made")
    value = interpreter.world.force(args[0])
    if isinstance(value, torch.Tensor) and not torch_api.is_wrapper(value):
        return tensor_class(value)
    if isinstance(value, SYMBOLS):
        return NUMBERS[type(value)]
    if isinstance(value, FrameGenerator):
        return types.GeneratorType
    return type(value)


@_class(super)
def _super(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if args:
        return super_of(interpreter, *forced(interpreter, args))
    frame = interpreter.frames[-1]
    if not frame.code.co_argcount:
        raise Raised(RuntimeError("super(): no arguments"))
    first = _first_argument(interpreter, frame)
    if "__class__" not in frame.code.co_freevars:
        raise Raised(RuntimeError("super(): __class__ cell not found"))
    cell = frame.locals["__class__"]
    owner = cell_get(interpreter, cell)
    if owner is ABSENT:
        raise Raised(RuntimeError("super(): empty __class__ cell"))
    return super_of(interpreter, owner, first)


def _first_argument(interpreter: Interpreter, frame: Frame) -> Any:
    """The current value of a frame's first parameter."""
    name = frame.code.co_varnames[0]
    first = frame.locals.get(name, ABSENT)
    if isinstance(first, Unread):
        first = interpreter.world.read_lazy(first.value, first.source)
    if name in frame.code.co_cellvars:
        first = cell_get(interpreter, first)
    if first is ABSENT:
        raise Raised(RuntimeError("super(): arg[0] deleted"))
    return interpreter.world.force(first)


@_class(list, tuple, set, frozenset, dict, collections.OrderedDict, collections.deque,
        collections.defaultdict, enumerate, zip, reversed)  # fmt: skip
def _container(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    if cls is enumerate:
        callbacks.refuse_python(interpreter, (*values[1:], *keywords.values()), callbacks.NUMBERS)
    if cls is reversed and len(values) == 1:
        hook = hook_of(interpreter, values[0], "__reversed__")
        if hook is not None:
            return interpreter.call(hook, (values[0],), {}, site)
        if _is_list_of_modules(values[0]):
            values[0] = list(operators.iterable(interpreter, values[0]))
        elif type_lookup(type(values[0]), "__reversed__") is ABSENT:
            callbacks.refuse_hooks(interpreter, values[0], ("__getitem__", "__len__"))
    readable = subscripts.items if issubclass(cls, dict) else operators.iterable
    if cls in (list, tuple):
        readable = partial(operators.listed, asks=cls is list or TUPLES_ASK_FOR_LENGTHS)
    factory = values[:1] if cls is collections.defaultdict else []
    values = factory + [readable(interpreter, v) for v in values[len(factory) :]]
    if cls is frozenset and len(values) == 1 and type(values[0]) is frozenset:
        return values[0]  # itself
    if cls in (set, frozenset):
        values = [concrete_keys(interpreter.native(list, v)) for v in values]
        for value in values:
            callbacks.refuse_python(interpreter, value, callbacks.HASHES)
    elif issubclass(cls, dict):
        values = factory + [_of_pairs(interpreter, v) for v in values[len(factory) :]]
    made = interpreter.native(cls, *values, **keywords)
    if cls is collections.OrderedDict:  # it may be given attributes
        interpreter.owned[id(made)] = made
    return made


_LISTS_OF_MODULES = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)


def _is_list_of_modules(value: Any) -> bool:
    """Whether torch's own methods give the items of a module in order."""
    kind = type(value)
    return any(
        all(getattr(kind, n) is getattr(c, n) for n in ("__getitem__", "__len__", "__iter__"))
        for c in _LISTS_OF_MODULES
        if issubclass(kind, c)
    )


def _of_pairs(interpreter: Interpreter, value: Any) -> Any:
    """What a dict is made of: pairs in a list, their keys looked at; a dict, a factory as it is."""
    if isinstance(value, dict) or callable(value) or value is None:
        return value
    pairs = interpreter.native(list, value)
    pairs = [(concrete_key(p[0]), p[1]) if type(p) is tuple and len(p) == 2 else p for p in pairs]
    keys = [p[0] for p in pairs if isinstance(p, tuple | list) and len(p) == 2]
    callbacks.refuse_python(interpreter, keys, callbacks.HASHES)
    return pairs


@_class(map, filter)
def _calling(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if not args:
        return interpreter.native(cls, **kwargs)  # raises eager's TypeError
    function, *values = forced(interpreter, args)
    wrap = Callback if cls is map else Predicate
    iterables = [operators.iterable(interpreter, v) for v in values]
    keywords = forced_keywords(interpreter, kwargs)  # from 3.14 on map has one
    return interpreter.native(cls, wrap(interpreter, function), *iterables, **keywords)


@_class(bool)
def _bool(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> bool:
    if len(args) != 1 or kwargs:
        keywords = forced_keywords(interpreter, kwargs)
        return bool(interpreter.native(bool, *forced(interpreter, args), **keywords))
    return operators.truth(interpreter, interpreter.world.force(args[0]))


@_class(int, float)
def _convert(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    if kwargs or len(values) > 1:
        keywords = forced_keywords(interpreter, kwargs)
        given = (*values, *keywords.values())
        callbacks.refuse_python(interpreter, given, (*callbacks.NUMBERS, "__trunc__"))
        return interpreter.native(cls, *values, **keywords)
    if values and isinstance(values[0], SYMBOLS):
        if cls is float:
            return torch.sym_float(values[0])
        symbol = None
        if isinstance(values[0], torch.SymFloat):
            symbol = interpreter.recorder.symbols.of_math(int, values)
        return torch.sym_int(counted(values[0])) if symbol is None else symbol
    for name in (f"__{cls.__name__}__", "__index__", "__trunc__"):
        hook = hook_of(interpreter, values[0], name) if values else None
        if hook is None and values and type_lookup(type(values[0]), name) is not ABSENT:
            break  # C code's is asked, and none after it
        if hook is not None and (cls, name) != (float, "__trunc__"):
            answer = interpreter.world.force(interpreter.call(hook, (values[0],), {}, None))
            kind = float if name == "__float__" else int
            if NUMBERS.get(type(answer)) is kind:
                return torch.sym_float(answer) if cls is float else answer
            if name == "__trunc__" or isinstance(answer, kind) and type(answer) is not kind:
                interpreter.native_broke = True  # it has been called: break before it
                raise BreakCapture("warning", f"{cls.__name__}() warns of what {name} gives")
            return checked(interpreter, cls, values[0], name, answer)
    return interpreter.native(cls, *values)


@_class(weakref.ref)
def _reference(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """Of a class; what others refer to may be a stand-in."""
    values = forced(interpreter, args)
    if len(values) not in (1, 2) or kwargs or not is_plain_class(values[0]):
        raise BreakCapture("c-class", "weakref.ReferenceType is constructed")
    return make_reference(*values)


@_class(bytes, bytearray)
def _bytes(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    if len(values) != 1 or kwargs or isinstance(values[0], _BYTES):
        return call_native(interpreter, cls, values, kwargs)
    hooks = ("__bytes__", "__index__", "__buffer__", "__len__", "__length_hint__")
    callbacks.refuse_hooks(interpreter, values[0], hooks)
    items = operators.iterable(interpreter, values[0])
    if isinstance(items, collections.abc.Iterator):
        items = interpreter.native(list, items)
    return call_native(interpreter, cls, [items], {})


@_class(str)
def _str(interpreter: Interpreter, cls: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    if len(values) == 1 and not kwargs:
        return operators.text(interpreter, values[0], "__str__", str)
    keywords = {k: concrete(interpreter.world.force(v)) for k, v in kwargs.items()}
    return interpreter.native(str, *values, **keywords)
