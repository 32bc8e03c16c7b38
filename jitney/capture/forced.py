"""Arguments in the form in which C code, or a handler of ours, may look at them (`World.force`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def forced(interpreter: Interpreter, args: Iterable[Any]) -> list[Any]:
    """Positional arguments, each guarded if it was not looked at before."""
    force = interpreter.world.force
    return [force(a) for a in args]


def forced_keywords(interpreter: Interpreter, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The same of keyword arguments."""
    force = interpreter.world.force
    return {k: force(v) for k, v in kwargs.items()}


def classes_among(
    interpreter: Interpreter,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    where: Callable[[Any], bool],
) -> set[type]:
    """The classes of the arguments, and of the items of lists and tuples among them, for which
    ``where`` holds: those that torch may ask what it is to make of a call."""
    found: set[type] = set()
    for value in (*forced(interpreter, args), *forced_keywords(interpreter, kwargs).values()):
        items = forced(interpreter, value) if type(value) in (list, tuple) else (value,)
        found.update(type(item) for item in items if where(item))
    return found
