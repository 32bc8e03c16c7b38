"""What a program's special methods may answer, checked by the C code that asks eager's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitney.capture import callbacks
from jitney.capture.frame import BreakCapture
from jitney.capture.symbols import concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def checked(interpreter: Interpreter, function: Any, owner: Any, name: str, answer: Any) -> Any:
    """What ``function(owner)`` makes of the ``answer`` that the method ``name`` of ``owner`` gave:
    one of another type, or converted, or its TypeError."""
    answer = concrete(answer)
    if callbacks.asks_python(interpreter, (answer,), callbacks.NUMBERS):
        interpreter.native_broke = True  # the method has been called: break before it
        raise BreakCapture("callback", f"C code would look into what {name} gives")
    cls = type(type(owner).__name__, (), {name: lambda *_: answer})
    return interpreter.native(function, cls())
