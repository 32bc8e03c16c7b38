"""Functions under ``functools.lru_cache``: they return what eager would find in the cache.

A result that is in the cache is read like any object that existed before the frame, with a guard on
what the cache holds. A result that is not yet there is computed and put there at capture, if the
function is seen to do nothing else. A function that does more (prints, changes what others see,
draws random numbers) is called by eager, behind a break. A frame that takes more results than the
cache holds computes the last ones again in every call, as in eager, where each pushes another out.
"""

from __future__ import annotations

import enum
import gc
import types
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import call_natively, policy, put_off_logging
from jitney.capture.cached_sizes import NoRandomNumbers
from jitney.capture.changes import effects_of
from jitney.capture.checked_again import is_changed
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import Kind
from jitney.capture.rebuild import CannotRebuild, Rebuilder
from jitney.capture.source import Below, Fixed, Referent
from jitney.capture.symbols import concrete_key

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

# Keys that are equal when they look equal, and stay what they are.
_KEYS = (
    int, float, bool, str, bytes, complex, type(None), type(Ellipsis), torch.dtype, torch.device,
    torch.layout, torch.memory_format, type, types.ModuleType, types.BuiltinFunctionType,
)  # fmt: skip
# Where `gc` finds a wrapper's parts, from the end: …, cache, function, mark of keywords, two types,
# ``__dict__``.
_CACHE, _MARK = -6, -4


class CachedCall:
    """What ``function(*args, **kwargs)`` finds in its cache; LookupError if that is nothing."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.function, self._args, self._kwargs = function, args, dict(kwargs)
        self.__qualname__ = function.__qualname__
        parts = gc.get_referents(function)
        self._cache, mark = parts[_CACHE], parts[_MARK]
        self._key = self._make_key(mark, function.cache_parameters()["typed"])

    def _make_key(self, mark: Any, typed: bool) -> Any:
        """As C's ``lru_cache_make_key``."""
        args, kwargs = self._args, self._kwargs
        if not typed and not kwargs:
            return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
        key = args
        if kwargs:
            key += (mark, *[part for item in kwargs.items() for part in item])
        return (*key, *map(type, args), *map(type, kwargs.values())) if typed else key

    def is_cached(self) -> bool:
        """Whether a call would run nothing."""
        return self._key in self._cache

    def __call__(self) -> Any:
        """The cached result; the cache counts a hit."""
        if not self.is_cached():
            raise LookupError(self.__qualname__)
        return self.function(*self._args, **self._kwargs)

    def has_room(self) -> bool:
        """Whether another result throws none out."""
        info = self.function.cache_info()
        return info.maxsize is None or info.currsize < info.maxsize

    def run(self, through_cache: bool) -> None:
        """Calls the function, or what it wraps; BreakCapture if that draws random numbers."""
        function = self.function if through_cache else self.function.__wrapped__
        with torch_api.without_function_modes(), NoRandomNumbers():
            function(*self._args, **self._kwargs)


def call_cached(
    interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any], site: Frame | None
) -> Any:
    """Calls what ``functools.lru_cache`` made."""
    inner = function.__wrapped__
    handler = policy.special_function(inner) if type(inner) is types.FunctionType else None
    if handler is put_off_logging.put_off:
        return handler(interpreter, function, args, kwargs, site)
    world = interpreter.world
    source = interpreter.source_or_fixed(function)
    if not isinstance(source, Fixed):
        world.guard(Kind.IS, source, function)
    if handler is call_natively.call_native:
        return handler(interpreter, inner, args, kwargs, site)
    world.read(inner, Fixed(inner))
    if handler is not None or function.cache_parameters()["maxsize"] == 0:
        return interpreter.call(inner, args, kwargs, site)
    args = tuple([world.force(a) for a in args])
    kwargs = {k: world.force(v) for k, v in kwargs.items()}
    if world.sized_calls.takes(function, (*args, *kwargs.values())):
        make = partial(_made_without_effects, interpreter, inner, args, kwargs)
        key = partial(_concrete_key, interpreter)
        return world.sized_calls.call(world, function, args, kwargs, key, make)
    # The cache is asked for numbers: a symbol's is assumed.
    args = tuple([concrete_key(a) for a in args])
    kwargs = {k: concrete_key(v) for k, v in kwargs.items()}
    call = CachedCall(
        function,
        tuple([_key(interpreter, a) for a in args]),
        {k: _key(interpreter, v) for k, v in kwargs.items()},
    )
    if not call.is_cached():
        made = _made_without_effects(interpreter, inner, args, kwargs)
        stays = call.has_room() or not _is_relied_on(interpreter, function)
        interpreter.native(partial(call.run, stays))
        if not stays:
            return made
    return world.read(call(), Referent(Fixed(call)))


def _is_relied_on(interpreter: Interpreter, function: Any) -> bool:
    """Whether the frame has already taken a result from the cache of ``function``."""
    return any(call.function is function for call in _calls(interpreter))


def _calls(interpreter: Interpreter) -> set[CachedCall]:
    """Those whose results the frame has taken from caches."""
    found = set()
    for guard in interpreter.world.guards.values():
        source = guard.source
        while isinstance(source, Below):
            source = source.base
        if isinstance(source, Fixed) and isinstance(source.value, CachedCall):
            found.add(source.value)
    return found


def refuse_late_uses(interpreter: Interpreter) -> None:
    """Raises `Restart` where more matters of a result for symbolic sizes than its items."""
    sized = interpreter.world.sized_calls
    sized.refuse_changes()
    sized.refuse_too_many([call.function for call in _calls(interpreter)])


def _concrete_key(interpreter: Interpreter, value: Any) -> Any:
    return _key(interpreter, concrete_key(value))


def _key(interpreter: Interpreter, value: Any) -> Any:
    """An argument as the cache is to see it: the object outside, guarded to be the same."""
    cls = type(value)
    if cls in (tuple, frozenset, torch.Size):
        return cls([_key(interpreter, item) for item in value])
    if cls is float and value != value:
        raise BreakCapture("lru-cache", "a function under lru_cache is called with nan")
    if cls in _KEYS or isinstance(value, enum.Enum | type):
        return value
    known = interpreter.world.inside.get(id(value))
    if known is None or isinstance(value, torch.Tensor) or cls.__hash__ is not object.__hash__:
        what = "tensor" if isinstance(value, torch.Tensor) else cls.__name__
        reason = f"a function under lru_cache is called with a {what}"
        raise BreakCapture("lru-cache", reason, "call it outside, or take the cache off it")
    if not isinstance(known.source, Fixed):
        interpreter.world.guard(Kind.IS, known.source, known.original)
    return known.original


def _made_without_effects(interpreter: Interpreter, inner: Any, args: Any, kwargs: Any) -> Any:
    """The result of ``inner``, which is seen to do nothing but make it, and to read nothing that
    the frame has changed; breaks before it otherwise."""
    recorder, world = interpreter.recorder, interpreter.world
    versions, deferred = recorder.versions(), len(interpreter.deferred)
    with world.reading() as reads:
        made = interpreter.call(inner, tuple(args), kwargs, None)
    wrote = any(recorder.is_mutated(given.example) for given in recorder.inputs.values())
    if (
        wrote
        or recorder.has_written(versions)
        or len(interpreter.deferred) > deferred
        or _changes(interpreter, reads.sources)
    ):
        interpreter.native_broke = True  # its body has been recorded: break before it
        reason = f"{inner.__qualname__}, under lru_cache, is called with effects"
        raise BreakCapture("lru-cache", reason, "call it once before, or take the cache off it")
    return made


def _changes(interpreter: Interpreter, noted: set[Any]) -> bool:
    try:
        return is_changed(effects_of(interpreter, Rebuilder(interpreter)), noted)
    except CannotRebuild:
        return True
