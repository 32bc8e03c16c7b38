"""Calling Python functions: argument binding, closures and globals with their sources."""

from __future__ import annotations

import builtins
import inspect
import sys
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.source import Attr, DictItem, Fixed, Function, Item, ModuleOf, Source

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

BUILTINS = Attr(ModuleOf("builtins"), "__dict__")
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_MISSING = object()


def globals_source(namespace: dict[str, Any]) -> Source:
    """How to reach a function's globals: through the module they belong to, if any."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is not None and getattr(module, "__dict__", None) is namespace:
        return Attr(ModuleOf(str(name)), "__dict__")
    return Fixed(namespace)


def frame_of(
    interpreter: Interpreter,
    function: FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    link: str | None,
) -> Frame:
    """A frame ready to run ``function`` with these arguments."""
    code = function.__code__
    if code.co_flags & _ASYNC:
        raise BreakCapture("async", f"{function.__qualname__} is asynchronous")
    source = interpreter.world.source_of(function)
    if source is None and not interpreter.is_owned(function):  # found where a guard holds it
        source = interpreter.world.know(function, function, Fixed(function)).source
    locals_ = bind(interpreter, function, source, args, kwargs)
    closure = function.__closure__ or ()
    if source is not None:
        if type(source) is not Function:
            interpreter.world.guard(Kind.IS, Attr(source, "__code__"), code)
        know_cells(interpreter, closure, source)
    frame = Frame(
        code,
        function.__globals__,
        globals_source(function.__globals__),
        locals_,
        closure,
        link,
    )
    frame.function = function
    return frame


def know_cells(interpreter: Interpreter, closure: tuple[CellType, ...], source: Source) -> None:
    """Lets in the cells of a function that existed before the frame."""
    world = interpreter.world
    for i, cell in enumerate(closure):
        place = Item(Attr(source, "__closure__"), i)
        if not world.is_known(cell, place):
            world.know(cell, cell, place)


def cell_get(interpreter: Interpreter, cell: CellType) -> Any:
    """What a cell holds now (maybe `Lazy`); ABSENT if empty."""
    shadow = interpreter.world.cell(cell)
    if shadow is not None:
        return shadow.get(interpreter.world)
    try:
        value = cell.cell_contents
    except ValueError:
        return ABSENT
    reads = interpreter.world.reads
    if reads is not None:
        reads.cells.append((cell, value))
    return value


def closure_of(interpreter: Interpreter, function: FunctionType) -> dict[str, Any]:
    """The values of a function's free variables, by name, forced. Breaks where one is empty."""
    world, source = interpreter.world, interpreter.world.source_of(function)
    cells = function.__closure__ or ()
    if source is not None:
        world.guard(Kind.IS, Attr(source, "__code__"), function.__code__)
        know_cells(interpreter, cells, source)
    held = {}
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        value = cell_get(interpreter, cell)
        if value is ABSENT:
            raise BreakCapture("closure", f"{name} of {function.__qualname__} is empty")
        held[name] = world.force(value)
    return held


def bind(
    interpreter: Interpreter,
    function: FunctionType,
    source: Source | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Binds arguments as CPython does; a mismatch breaks, so that eager raises its own error."""
    code = function.__code__
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    force = interpreter.world.force
    bound = dict(zip(names[:positional], args, strict=False))
    extra = args[positional:]
    slot = positional + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[slot]] = tuple([force(a) for a in extra])
        slot += 1
    elif extra:
        raise _mismatch(function, "too many positional arguments")
    rest: dict[str, Any] = {}
    accepted = names[code.co_posonlyargcount : positional + keyword_only]
    for name, value in kwargs.items():
        if name in accepted:
            if name in bound:
                raise _mismatch(function, f"two values for {name}")
            bound[name] = value
        elif not isinstance(name, str):
            raise _mismatch(function, "a keyword that is no text")
        else:
            rest[name] = value
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[slot]] = {k: force(v) for k, v in rest.items()}
    elif rest:
        raise _mismatch(function, f"unexpected keyword arguments {sorted(rest)}")
    _fill_defaults(interpreter, function, source, bound)
    return bound


def _fill_defaults(
    interpreter: Interpreter,
    function: FunctionType,
    source: Source | None,
    bound: dict[str, Any],
) -> None:
    code = function.__code__
    names = code.co_varnames
    positional = code.co_argcount
    defaults = function.__defaults__ or ()
    read = interpreter.world.read_lazy
    for i, name in enumerate(names[:positional]):
        if name in bound:
            continue
        place = i - (positional - len(defaults))
        if place < 0:
            raise _mismatch(function, f"no value for {name}")
        value = defaults[place]
        if source is not None:
            interpreter.world.guard(Kind.LENGTH, Attr(source, "__defaults__"), len(defaults))
            value = read(value, Item(Attr(source, "__defaults__"), place))
        bound[name] = value
    keyword = function.__kwdefaults__ or {}
    for name in names[positional : positional + code.co_kwonlyargcount]:
        if name in bound:
            continue
        value = keyword.get(name, _MISSING)
        if value is _MISSING:
            raise _mismatch(function, f"no value for {name}")
        if source is not None:
            value = read(value, DictItem(Attr(source, "__kwdefaults__"), name))
        bound[name] = value


def _mismatch(function: FunctionType, what: str) -> BreakCapture:
    return BreakCapture("arguments", f"{function.__qualname__}: {what}")


def builtin(name: str) -> Any:
    """A builtin by name; KeyError if there is none."""
    return builtins.__dict__[name]
