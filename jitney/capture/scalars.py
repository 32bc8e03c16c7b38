"""Scalar inputs: constants guarded by value when looked at, or symbols when they are dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitney.capture.frame import BreakCapture, Lazy
from jitney.capture.guard import Kind
from jitney.capture.late_texts import is_computed_text, refuse_tensor
from jitney.capture.source import Source

if TYPE_CHECKING:
    from jitney.capture.world import World

SCALAR_TYPES = frozenset({int, float, bool, str, bytes, complex})


class Scalars:
    """The scalars one capture has looked at."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._forced: dict[Source, Any] = {}

    def force(self, lazy: Lazy) -> Any:
        """The scalar as code may use it: itself, guarded by value, or its symbol."""
        source = lazy.source
        if is_computed_text(source):
            refuse_tensor(source)
            raise BreakCapture("changing-text", "a text of a number that changes is looked at")
        self._world.note(source)
        if source in self._forced:
            return self._forced[source]
        value = self._world.tensors.symbolic_scalar(lazy.value, source)
        if value is None:
            value = lazy.value
            self._world.guard(Kind.EQUALS, source, value)
        else:
            self._world.guard(Kind.TYPE, source, type(lazy.value))
        self._forced[source] = value
        return value
