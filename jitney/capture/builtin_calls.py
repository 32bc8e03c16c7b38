"""Builtins whose answer must be eager's although tensors are fakes and objects are shadowed."""

from __future__ import annotations

import builtins
import collections
import functools
import itertools
import math
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import (
    attribute_stores,
    attributes,
    callbacks,
    deferred,
    exceptions,
    late_texts,
    operators,
    polyfills,
)  # fmt: skip
from jitney.capture.answers import checked
from jitney.capture.finalizers import refuse_finalizer
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame, Raised, Restart
from jitney.capture.generators import Iterating
from jitney.capture.guard import Kind
from jitney.capture.lookups import look_up
from jitney.capture.operands import guard_tensors
from jitney.capture.special_methods import hook_of
from jitney.capture.symbols import SYMBOLS, concrete, counted
from jitney.capture.told_later import refuse_own_code
from jitney.capture.tracebacks import traceback_of

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

Handler = Callable[..., Any]
_HANDLERS: dict[Any, Handler] = {}
_NUMBERS = {int, float, bool, complex}


def handler_of(function: Any) -> Handler | None:
    """Our own version of a C function, if there is one."""
    try:
        return _HANDLERS.get(function)
    except TypeError:  # a method of something unhashable
        return None


def builtin(*functions: Any, takes: range | None = None) -> Callable[[Handler], Handler]:
    """Registers our own version of C functions. ``takes``: how many arguments without names they
    take; for others, and for named ones, they raise their own TypeError."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            _HANDLERS[function] = handler if takes is None else _counting(handler, takes)
        return handler

    return register


def _counting(handler: Handler, takes: range) -> Handler:
    def run(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
        if len(args) in takes and not kwargs:
            return handler(interpreter, function, args, kwargs, site)
        keywords = forced_keywords(interpreter, kwargs)
        return interpreter.native(function, *forced(interpreter, args), **keywords)

    return run


ONE, TWO = range(1, 2), range(2, 3)


def is_list_sort(function: Any) -> bool:
    """Whether it is ``some_list.sort``."""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    return name == "sort" and isinstance(owner, list)


def is_plain(interpreter: Interpreter, function: Any) -> bool:
    """Whether it is C code that answers the same for stand-ins as for what they stand for. A method
    that was bound outside belongs to its owner as that was before the frame."""
    if type(function) is not types.BuiltinFunctionType or handler_of(function) is not None:
        return False
    module = isinstance(function.__self__, types.ModuleType)
    return module or interpreter.world.source_of(function) is None


def _polyfill(replacement: Any) -> Handler:
    def run(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        link = "push" if site is not None else None
        return interpreter.call_python(replacement, args, kwargs, link)

    return run


def _polyfill_with_key(replacement: Any) -> Handler:
    def run(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        key = interpreter.world.force(kwargs.get("key"))
        if key is None or is_plain(interpreter, key):
            values = forced(interpreter, args)
            if len(values) == 1:
                goes_over = operators.listed if function is sorted else operators.iterable
                values = [interpreter.native(list, goes_over(interpreter, values[0]))]
            if key is not None:  # what it gives is compared, or held by what it is bound to
                hooks = (*callbacks.COMPARISONS, *callbacks.NUMBERS)
                callbacks.refuse_python(interpreter, (*values, key.__self__), hooks)
            callbacks.refuse_python(interpreter, values, callbacks.COMPARISONS)
            keywords = forced_keywords(interpreter, kwargs)
            return interpreter.native(function, *values, **keywords)
        link = "push" if site is not None else None
        return interpreter.call_python(replacement, args, kwargs, link)

    return run


_HANDLERS[builtins.sorted] = _polyfill_with_key(polyfills.sorted_)
_HANDLERS[builtins.min] = _polyfill_with_key(polyfills.min_)
_HANDLERS[builtins.max] = _polyfill_with_key(polyfills.max_)
_HANDLERS[builtins.any] = _polyfill(polyfills.any_)
_HANDLERS[builtins.all] = _polyfill(polyfills.all_)
_HANDLERS[functools.reduce] = _polyfill(polyfills.reduce_)


@builtin(itertools.chain.from_iterable)
def _chain(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """What the iterators go over is asked for it by our ``iter``."""
    values = forced(interpreter, args)
    if len(values) != 1 or kwargs:
        return interpreter.native(function, *values, **kwargs)  # raises eager's TypeError
    begin = Iterating(interpreter, operators.get_native_iter)
    inner = map(begin, operators.iterable(interpreter, values[0]))
    return interpreter.native(function, inner)


@builtin(builtins.sum)
def _sum(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """Numbers are summed by Python itself, which from 3.12 on compensates for rounding."""
    values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    if values:
        iterable = operators.iterable(interpreter, values[0])
        values[0] = interpreter.native(list, iterable)
        if keywords.keys() <= {"start"}:
            values, keywords = [*values, *keywords.values()], {}
        starts = (*values[1:], *keywords.values())
        if compensated := _compensated({type(x) for x in (*values[0], *starts)}):
            values = [[concrete(x) for x in values[0]], *map(concrete, values[1:])]
        refused = any(isinstance(x, str | bytes | bytearray) for x in starts)
        if not refused and not {type(x) for x in (*values[0], *values[1:])} <= _NUMBERS:
            if compensated and len(values) < 3 and not keywords:
                values = _numbers_summed(interpreter, *values)
            link = "push" if site is not None else None
            return interpreter.call_python(polyfills.sum_, tuple(values), keywords, link)
    return interpreter.native(function, *values, **keywords)


def _compensated(kinds: set[type]) -> bool:
    """Whether ``sum`` keeps what rounding loses of such numbers."""
    return sys.version_info >= (3, 12) and not kinds.isdisjoint((float, torch.SymFloat))


def _numbers_summed(interpreter: Interpreter, items: Any, start: Any = 0) -> list[Any]:
    """What is left to add, and to what, once Python has summed the numbers that come first."""
    count = 0
    if type(start) in _NUMBERS:
        count = next(at for at, item in enumerate(items) if type(item) not in _NUMBERS)
    first = items[:count]
    return [items[count:], interpreter.native(builtins.sum, first, start) if first else start]


@builtin(builtins.len, takes=ONE)
def _len(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    return operators.length(interpreter, interpreter.world.force(args[0]))


@builtin(builtins.callable, takes=ONE)
def _callable(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    value = interpreter.world.force(args[0])
    look_up(interpreter, type(value), "__call__")
    return interpreter.native(function, value)


@builtin(builtins.getattr, takes=range(2, 4))
def _getattr(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    owner, name, *default = args
    owner, name = forced(interpreter, (owner, name))
    if not isinstance(name, str):
        return interpreter.native(function, None, name)  # raises eager's TypeError
    if not default:
        return interpreter.get_attr(owner, name, site)
    try:
        return interpreter.get_attr(owner, name)
    except Raised as raised:
        if isinstance(raised.exception, AttributeError):
            return default[0]
        raise


@builtin(builtins.hasattr, takes=TWO)
def _hasattr(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    owner, name = forced(interpreter, args)
    if not isinstance(name, str):
        return interpreter.native(function, None, name)  # raises eager's TypeError
    try:
        interpreter.get_attr(owner, name)
    except Raised as raised:
        if isinstance(raised.exception, AttributeError):
            return False
        raise
    return True


def _on_attribute(act: Callable[..., Any], count: int) -> Handler:
    """A function of an object, a name and perhaps a value, by what it comes to here."""

    def handle(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
        values = forced(interpreter, args)
        if len(values) != count or kwargs:
            return interpreter.native(function, *values, **kwargs)  # raises eager's TypeError
        if not isinstance(values[1], str):
            return interpreter.native(function, None, *values[1:])  # so does this
        return act(interpreter, *values)

    return handle


for _function, _act, _count in (
    (builtins.setattr, attribute_stores.set_attr, 3),
    (builtins.delattr, attribute_stores.del_attr, 2),
    (object.__setattr__, attribute_stores.generic_set, 3),
    (object.__delattr__, attribute_stores.generic_del, 2),
    (object.__getattribute__, attributes.generic_get, 2),
):
    builtin(_function)(_on_attribute(_act, _count))


@builtin(object.__init__)
def _object_init(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any
) -> None:
    if len(args) > 1 or kwargs:  # it may raise
        interpreter.native(function, *forced(interpreter, args), **kwargs)


@builtin(object.__new__)
def _object_new(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    cls, *rest = forced(interpreter, args)
    refuse_finalizer(interpreter, cls)
    interpreter.world.refuse_disguise(cls)
    made = interpreter.native(object.__new__, cls, *rest, **kwargs)
    interpreter.owned[id(made)] = made
    return made


@builtin(dict.__new__, list.__new__, tuple.__new__, collections.OrderedDict.__new__, set.__new__)
def _container_new(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any
) -> Any:
    values = forced(interpreter, args)
    if len(values) > 1:
        values[1] = operators.iterable(interpreter, values[1])
    refuse_finalizer(interpreter, values[0])
    interpreter.world.refuse_disguise(values[0])
    made = interpreter.native(function, *values)
    interpreter.owned[id(made)] = made
    return made


@builtin(builtins.id, takes=ONE)
def _id(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> int:
    value = interpreter.world.force(args[0])
    known = interpreter.world.inside.get(id(value))
    if known is None or isinstance(value, torch.Tensor):
        raise BreakCapture("id", "id() of an object that changes from call to call")
    interpreter.world.guard(Kind.IS, known.source, known.original)
    return id(known.original)


@builtin(sys.exc_info, takes=range(1))
def _exc_info(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    exception = exceptions.handled_now(interpreter)
    if exception is None:
        return (None, None, None)
    looks = interpreter.frames[-1].globals.get("__name__") != "contextlib"
    return (type(exception), exception, traceback_of(interpreter, exception) if looks else None)


@builtin(sys.exception, takes=range(1))
def _exception(vm: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    return exceptions.handled_now(vm)


@builtin(*deferred.FILTERS_MUTATED)
def _filters_mutated(interpreter: Interpreter, function: Any, args: Any, *_: Any) -> None:
    """What has been warned of before goes by the filters, and the recorders, of that time."""
    if interpreter.warned_at >= 0:
        cause = BreakCapture("warning", "filters of warnings change after it")
        raise Restart(interpreter.warned_at, cause)
    interpreter.deferred.append((function, tuple(args), {}))


@builtin(warnings.warn)
def _warn(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> None:
    refuse_own_code(interpreter, deferred.warns_by_own_code, "warning")
    values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    given = dict(zip(("message", "category", "stacklevel", "source"), values), **keywords)
    if isinstance(given["message"], Warning) or given.get("source") is not None:
        raise BreakCapture("warning", "a warning object is issued")
    depth = min(max(given.get("stacklevel", 1), 1), len(interpreter.frames))
    frame = interpreter.frames[-depth]
    module = frame.globals.get("__name__", "<unknown>")
    place = (frame.code.co_filename, frame.current.line, module)
    category = given.get("category") or UserWarning
    changed = deferred.filters_change(interpreter.deferred)
    if changed or exceptions.becomes_error(interpreter, category):
        raise BreakCapture("warning", "a filter may raise the warning, or was changed before it")
    interpreter.warned_at = interpreter.frames[-1].step
    interpreter.deferred.append((deferred.warn_at, (given["message"], category, *place), {}))


@builtin(os.fspath)
def _fspath(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    hook = hook_of(interpreter, values[0], "__fspath__") if len(values) == 1 else None
    if hook is None:
        return interpreter.native(function, *values, **forced_keywords(interpreter, kwargs))
    text = interpreter.world.force(interpreter.call(hook, (values[0],), {}, None))
    if not isinstance(text, str | bytes):
        interpreter.native_broke = True  # it has been called: break before it
        raise BreakCapture("callback", "__fspath__ does not give a text")
    return text


@builtin(sys.intern, takes=ONE)
def _intern(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    return interpreter.native(function, *forced(interpreter, args), **kwargs)


@builtin(builtins.hash, takes=ONE)
def _hash(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> int:
    value = interpreter.world.force(args[0])
    for part in callbacks.held((value,)):
        if isinstance(part, (*SYMBOLS, torch.Tensor)) or type(part).__hash__ is object.__hash__:
            raise BreakCapture("hash", f"hash() of a {type(part).__name__}")
    hook = hook_of(interpreter, value, "__hash__")
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        return checked(interpreter, hash, value, "__hash__", answer)
    callbacks.refuse_python(interpreter, (value,), callbacks.HASHES)
    return interpreter.native(hash, value)


@builtin(builtins.iter, takes=range(1, 3))
def _iter(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if len(args) != 1:
        raise BreakCapture("iter", "iter() with a sentinel")
    return operators.get_iter(interpreter, interpreter.world.force(args[0]))


@builtin(builtins.next, takes=range(1, 3))
def _next(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    iterator, *default = forced(interpreter, args)
    try:
        return operators.advance(interpreter, iterator)
    except Raised as raised:
        if default and isinstance(raised.exception, StopIteration):
            return default[0]
        raise


@builtin(builtins.format, takes=range(1, 3))
def _format(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    value, *spec = forced(interpreter, args)
    if spec and not isinstance(spec[0], str):
        return interpreter.native(function, None, spec[0])  # raises eager's TypeError
    return operators.format_value(interpreter, value, *spec)


@builtin(builtins.repr, builtins.ascii, takes=ONE)
def _text(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    return operators.text(interpreter, interpreter.world.force(args[0]), "__repr__", function)


@builtin(builtins.abs, math.floor, math.ceil, math.trunc, takes=ONE)
def _whole(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if function is builtins.abs and isinstance(forced(interpreter, args)[0], SYMBOLS):
        link = "push" if site is not None else None
        return interpreter.call_python(polyfills.abs_, args, kwargs, link)
    return _number(interpreter, function, args, kwargs, site)


@builtin(builtins.round)
def _number(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    if function is builtins.abs:
        guard_tensors(interpreter, values[0], None, "__abs__")
    hook = hook_of(interpreter, values[0], f"__{function.__name__}__") if values else None
    if hook is not None:
        digits = [*values[1:], *keywords.values()]
        most = 1 if function is builtins.round else 0
        if len(digits) > most or keywords.keys() - {"ndigits"}:
            return interpreter.native(function, *values, **keywords)  # raises eager's TypeError
        given = (values[0], *(n for n in digits if n is not None))
        return interpreter.call(hook, given, {}, site)
    if function is not builtins.abs and not keywords:
        if any(isinstance(v, torch.SymFloat) for v in values):
            symbol = interpreter.recorder.symbols.of_math(function, values)
            if symbol is not None:
                return symbol
    if function is builtins.round and len(values) + len(keywords) > 1:  # symbols ignore digits
        values, keywords = [*map(concrete, values)], {k: concrete(v) for k, v in keywords.items()}
    elif function is not builtins.abs:
        values = [*map(counted, values)]
    callbacks.refuse_python(interpreter, (*values, *keywords.values()), callbacks.NUMBERS)
    return interpreter.native(function, *values, **keywords)


@builtin(builtins.pow)
def _pow(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    values = forced(interpreter, args)
    if len(values) == 2 and not kwargs:
        return operators.binary(interpreter, "**", *values)
    if len(values) == 3 and not kwargs:
        hook = hook_of(interpreter, values[0], "__pow__")
        if hook is not None:
            answer = interpreter.world.force(interpreter.call(hook, tuple(values), {}, None))
            if answer is NotImplemented:
                raise BreakCapture("operator", "a power with a modulus has no answer")
            return answer
    keywords = forced_keywords(interpreter, kwargs)
    for value in (*values, *keywords.values()):
        callbacks.refuse_hooks(interpreter, value, ("__pow__", "__rpow__"))
    values, keywords = [*map(concrete, values)], {k: concrete(v) for k, v in keywords.items()}
    return interpreter.native(function, *values, **keywords)


@builtin(builtins.print)
def _print(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> None:
    keywords = forced_keywords(interpreter, kwargs)
    if keywords.keys() - {"sep", "end", "file", "flush"} or not all(
        isinstance(keywords.get(name), str | None) for name in ("sep", "end")
    ):
        raise BreakCapture("arguments", "print is given what it does not take")
    for name in ("write", "flush"):
        if hook_of(interpreter, keywords.get("file"), name) is not None:
            raise BreakCapture("print", "print calls the program's own code")
    if keywords.get("file") is None:
        refuse_own_code(interpreter, deferred.prints_by_own_code, "print")
    rows = (frame.program.handler_at(frame.index - 1) for frame in interpreter.frames)
    if keywords.get("file") not in (None, sys.stdout, sys.stderr) and any(rows):
        raise BreakCapture("print", "what print raises may be handled")
    texts = []
    for value in args:
        if not late_texts.is_unread(interpreter, value):
            value = operators.text(interpreter, interpreter.world.force(value), "__str__", str)
        texts.append(value)
    interpreter.deferred.append((print, tuple(texts), keywords))
