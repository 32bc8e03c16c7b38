"""Prints, warnings and records are put off until the graph has run: not where code of the program's
would be told of them, whose state the frame may read in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jitney.capture.frame import BreakCapture
from jitney.capture.guard import Kind
from jitney.capture.source import Fixed, Referent

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def refuse_own_code(interpreter: Interpreter, asked: Callable[[], bool], kind: str) -> None:
    """Breaks where ``asked`` says that code of the program's would be told; assumes that it is not
    where it is not now."""
    if asked():
        raise BreakCapture(kind, "code of the program's would be told later")
    interpreter.world.guard(Kind.EQUALS, Referent(Fixed(asked)), False)
