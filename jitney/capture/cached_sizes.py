"""Functions under ``functools.lru_cache`` that are given symbolic sizes. The wrapped function is
run on the symbols. Whenever the frame is called again, a guard asks the cache itself whether it
gives the same for the sizes of that call, so the cache also holds what it would hold in eager.

The result stands for an object that the cache shares among callers. A frame that writes to it,
leaves it behind, or compares it by identity is captured again with the sizes as constants. So is
one whose function cannot be run on symbols, or returns something other than numbers and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.compare import fully_equal
from jitney.capture.frame import ANEW, BreakCapture, Restart

if TYPE_CHECKING:
    from jitney.capture.world import World

#: Functions that one capture gives numbers before it gives them to all others too.
MOST_GIVEN_UP = 4
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Hole:
    """Where the ``index``-th number goes."""

    index: int


@dataclass(frozen=True)
class Extents:
    """A `torch.Size` with holes."""

    items: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class SizedCall:
    """Tells whether ``function(*args, **kwargs)`` returns ``result``, given the numbers that go
    into the holes of all three: what ``sizes`` are."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    sizes: tuple[torch.SymInt, ...] = ()

    def __call__(self, *numbers: int) -> bool:
        """Calls the function anew; ``numbers`` in the order of ``sizes``."""
        keywords = {name: _filled(value, numbers) for name, value in self.kwargs.items()}
        found = self.function(*_filled(self.args, numbers), **keywords)
        return fully_equal(found, _filled(self.result, numbers))


def _filled(value: Any, numbers: tuple[int, ...]) -> Any:
    kind = type(value)
    if kind is Hole:
        return numbers[value.index]
    if kind is Extents:
        return torch.Size([_filled(item, numbers) for item in value.items])
    if kind in (tuple, list):
        return kind([_filled(item, numbers) for item in value])
    if kind is dict:
        return {key: _filled(item, numbers) for key, item in value.items()}
    return value


class SizedCalls:
    """Those of one capture. ``given_up``: functions, by id, that are given numbers instead; None:
    all are."""

    def __init__(self, given_up: dict[int, Any] | None) -> None:
        self._given_up: dict[int, Any] = {} if given_up is None else given_up
        self._most = 0 if given_up is None else MOST_GIVEN_UP
        self._made: dict[Any, Any] = {}
        self._shared: dict[int, tuple[Any, list[Any], Any]] = {}  # a part, its items, function
        self.calls: list[SizedCall] = []

    def takes(self, function: Any, values: Iterable[Any]) -> bool:
        """Whether a call with these arguments is to be run on symbols."""
        if id(function) in self._given_up or len(self._given_up) >= self._most:
            return False
        return not function.cache_parameters()["typed"] and any(map(_has_size, values))

    def call(
        self,
        world: World,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key_of: Callable[[Any], Any],
        make: Callable[[], Any],
    ) -> Any:
        """What the call returns: what ``make`` does, once for the same sizes."""
        sizes: list[torch.SymInt] = []
        positional = tuple([_emptied(a, sizes, key_of) for a in args])
        keywords = {name: _emptied(a, sizes, key_of) for name, a in kwargs.items()}
        texts = tuple([str(size.node.expr) for size in sizes])
        key = (id(function), _identity(positional), _identity(tuple(keywords.items())), texts)
        if key in self._made:
            return self._made[key]
        try:
            made = make()
            parts: list[Any] = []
            result = _result(world, made, sizes, parts)
            call = SizedCall(function, positional, keywords, result, tuple(sizes))
            with torch_api.without_function_modes(), NoRandomNumbers():
                if not call(*map(torch_api.hint_of, sizes)):
                    raise BreakCapture("lru-cache", "the cache holds another result")
        except BreakCapture as cause:
            raise self._give_up(function, cause.reason) from None
        except Restart as restart:
            if restart.step == ANEW:
                raise
            raise self._give_up(function, restart.cause.reason) from None
        self._made[key] = made
        self._shared.update({id(part): (part, _items(part), function) for part in parts})
        self.calls.append(call)
        return made

    def refuse(self, value: Any) -> None:
        """Raises `Restart` for a part of a result of which more than its items matters."""
        found = self._shared.get(id(value))
        if found is not None:
            raise self._give_up(found[2], "the object that a cache holds is kept or compared")

    def refuse_changes(self) -> None:
        """Raises `Restart` where a result was written to."""
        for part, items, function in self._shared.values():
            now = _items(part)
            if len(now) != len(items) or any(a is not b for a, b in zip(now, items, strict=True)):
                raise self._give_up(function, "what a cache holds is written to")

    def refuse_too_many(self, numbered: Iterable[Any]) -> None:
        """Raises `Restart` where a cache holds fewer results than the frame takes from it, with
        symbols and without (``numbered``: the function of each): one would throw out another."""
        functions = [*numbered, *[call.function for call in self.calls]]
        for call in self.calls:
            most = call.function.cache_parameters()["maxsize"]
            if most is not None and sum(f is call.function for f in functions) > most:
                raise self._give_up(call.function, "a frame takes more results than a cache holds")

    def _give_up(self, function: Any, reason: str) -> Restart:
        self._given_up[id(function)] = function
        return Restart(ANEW, BreakCapture("lru-cache", reason))


class NoRandomNumbers(torch_api.dispatch_mode_class()):  # type: ignore[misc]
    """A scope in which BreakCapture is raised where torch draws random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise BreakCapture("lru-cache", "a function under lru_cache draws random numbers")
        return func(*args, **kwargs or {})


def _has_size(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_size, tuple.__iter__(value)))
    return type(value) is torch.SymInt and torch_api.constant_of(value) is None


def _hole(size: torch.SymInt, sizes: list[torch.SymInt]) -> Any:
    number = torch_api.constant_of(size)
    if number is not None:
        return number
    sizes.append(size)
    return Hole(len(sizes) - 1)


def _emptied(value: Any, sizes: list[torch.SymInt], key_of: Callable[[Any], Any]) -> Any:
    """An argument with holes for symbols, which are added to ``sizes``."""
    kind = type(value)
    if kind is torch.SymInt:
        return _hole(value, sizes)
    if kind in (tuple, torch.Size):
        items = tuple([_emptied(item, sizes, key_of) for item in value])
        return Extents(items) if kind is torch.Size else items
    return key_of(value)


def _result(world: World, value: Any, sizes: list[torch.SymInt], parts: list[Any]) -> Any:
    """A result with holes for symbols; its containers are added to ``parts``."""
    value = world.force(value)
    kind = type(value)
    if kind is torch.SymInt:
        return _hole(value, sizes)
    if kind in (tuple, list, torch.Size) or (kind is dict and id(value) not in world.inside):
        if value != ():
            parts.append(value)
        if kind is dict:
            items = {k: _result(world, item, sizes, parts) for k, item in value.items()}
            if all(type(key) in (*_PLAIN, Hole) for key in items):
                return items
        else:
            found = [_result(world, item, sizes, parts) for item in value]
            return Extents(tuple(found)) if kind is torch.Size else kind(found)
    elif kind in _PLAIN:
        return value
    raise BreakCapture("lru-cache", f"a function under lru_cache returns a {kind.__name__}")


def _items(part: Any) -> list[Any]:
    return [x for pair in part.items() for x in pair] if type(part) is dict else list(part)


def _identity(value: Any) -> Any:
    """A key that tells arguments apart where the cache may."""
    if type(value) is tuple:
        return tuple(map(_identity, value))
    if type(value) is Extents:
        return torch.Size, _identity(value.items)
    return (type(value), repr(value)) if type(value) in (*_PLAIN, Hole) else id(value)
