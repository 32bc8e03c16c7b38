"""Arguments in the form in which C code, or a handler of ours, may look at them (`World.force`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
