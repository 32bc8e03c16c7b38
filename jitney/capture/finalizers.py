"""Objects with a ``__del__``, which break the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitney.capture.frame import BreakCapture
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import look_up

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def refuse_finalizer(interpreter: Interpreter, cls: type) -> None:
    """Breaks before an instance is made that tells when it ends: captures let go of theirs, and a
    compiled function makes only what it leaves behind."""
    if look_up(interpreter, cls, "__del__") is not ABSENT:
        raise BreakCapture("finalizer", f"a {cls.__qualname__} is made, which has a __del__")
