"""What a custom backward reads of the program's state, which may change after the forward.

While a backward is captured the interpreter has a `World` of its own, so that every read leaves a
guard there, whether or not the forward has read the same. Guards on Python values are checked again
when the backward pass runs; a backward that reads what cannot be checked then is not captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.cached_sizes import SizedCalls
from jitney.capture.check_guards import compile_check
from jitney.capture.custom_gradient import Kept
from jitney.capture.guard import Guard, Kind
from jitney.capture.source import Fixed, ModuleOf, Source
from jitney.capture.world import BY_VALUE, CONTAINERS, Known, World, is_identity
from jitney.torch_api import collectives

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_SCALARS = (int, float, bool, str, bytes, complex, type(None), *BY_VALUE)
_LISTS = (tuple, list)


class CannotKeep(Exception):
    """``ctx`` holds an object through which a backward may read anything; the message says what."""


@contextmanager
def world_of_backward(interpreter: Interpreter, context: Any) -> Iterator[World]:
    """A scope in which the interpreter reads through a fresh world, which knows of the objects of
    the frame those that ``context`` holds. Its guards become the frame's. Raises CannotKeep."""
    outer = interpreter.world
    world = World(interpreter.tensors, SizedCalls(None))
    world.where = interpreter.where
    for value in _held(vars(context), outer):
        known = outer.inside.get(id(value))
        if known is not None:
            world.know(known.original, known.inside, known.source)
    interpreter.world = world
    try:
        yield world
    finally:
        interpreter.world = outer
        world.guard_presence()
        world.guard_keys()
        outer.guards.update({k: g for k, g in world.guards.items() if k not in outer.guards})


def _held(value: Any, outer: World) -> Iterator[Any]:
    """The tensors and the objects from outside the frame in what a ``ctx`` holds."""
    known: Known | None = outer.inside.get(id(value))
    if known is not None and isinstance(value, CONTAINERS):
        raise CannotKeep(f"a {type(value).__name__} from outside")
    if isinstance(value, dict):
        value = (*value.keys(), *value.values())
    if type(value) in _LISTS:
        for item in value:
            yield from _held(item, outer)
    elif known is not None or isinstance(value, torch.Tensor):
        yield value
    elif not (is_identity(value) or isinstance(value, (*_SCALARS, torch.SymInt, torch.SymFloat))):
        raise CannotKeep(f"a {type(value).__name__}")


def as_constants(value: Any, keep: Callable[[torch.Tensor], Kept]) -> Any:
    """What a ``ctx`` holds as `Author` wants it; ``keep`` is asked for every tensor. Raises
    CannotKeep for what is no constant."""
    if isinstance(value, torch.Tensor):
        return keep(value)
    if is_identity(value) or isinstance(value, _SCALARS) or collectives.is_setting(value):
        return value
    if type(value) is dict:
        return {key: as_constants(item, keep) for key, item in value.items()}
    if type(value) in _LISTS:
        return type(value)([as_constants(item, keep) for item in value])
    raise CannotKeep(f"a {type(value).__name__}")


def values_read(guards: Sequence[Guard]) -> list[Guard]:
    """Those of the guards that are on what a program may change: numbers, containers, tensors."""
    return [guard for guard in guards if _is_on_value(guard)]


def _is_on_value(guard: Guard) -> bool:
    if guard.kind is Kind.CLASS_ATTR:
        return isinstance(guard.expected[1], bool | int | float | str | tuple | list | dict)
    return guard.kind in (Kind.EQUALS, Kind.LENGTH, Kind.KEYS, Kind.TENSOR, Kind.HAS_KEY)


def check_of(guards: Sequence[Guard], name: str) -> Callable[[], bool] | None:
    """``holds()``: whether ``guards`` hold at any later time; None if that cannot be told without
    the frame, or is about a tensor."""
    for guard in guards:
        if guard.kind is Kind.TENSOR or not isinstance(_root(guard.source), Fixed | ModuleOf):
            return None
    check = compile_check(guards, (), name)
    return partial(check, None)


def _root(source: Source) -> Source:
    base = getattr(source, "base", None)
    return source if base is None else _root(base)
