"""Tracebacks: those of a capture would show the interpreter's frames. So a frame that asks for one
breaks the graph, and raises its exception for real."""

from __future__ import annotations

import dis
import inspect
import types
from typing import TYPE_CHECKING, Any

from jitney.capture.frame import BreakCapture, Restart

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def traceback_of(interpreter: Interpreter, exception: BaseException) -> Any:
    """Its ``__traceback__``. Raises `Restart` where the frame itself raised the exception: the
    capture then breaks before the instruction that does."""
    raised = interpreter.raised_at.get(id(exception))
    if raised is not None:
        raise Restart(raised[0], BreakCapture("traceback", "an exception's traceback is asked for"))
    if interpreter.world.source_of(exception) is not None:
        return interpreter.get_attr(exception, "__traceback__")
    return exception.__traceback__


def given_to(interpreter: Interpreter, leave: Any, exception: BaseException) -> Any:
    """What an ``__exit__`` gets for a traceback: None where its code does not look."""
    function = getattr(leave, "__func__", None)
    if not isinstance(function, types.FunctionType) or _is_generators(function):
        return None
    code, place = function.__code__, 3
    if code.co_argcount <= place:  # in a tuple of the rest
        place = code.co_argcount + code.co_kwonlyargcount
        if not code.co_flags & inspect.CO_VARARGS:
            return None
    reads = [i.argval for i in dis.get_instructions(code) if "LOAD" in i.opname]
    names = {name for read in reads for name in (read if isinstance(read, tuple) else (read,))}
    return traceback_of(interpreter, exception) if code.co_varnames[place] in names else None


def _is_generators(function: types.FunctionType) -> bool:
    """Whether it is what leaves a ``@contextmanager``, whose generator does not see it, or one of
    the standard library's that ignore it."""
    return function.__module__ == "contextlib" and "ExitStack" not in function.__qualname__


def refuse_bare(interpreter: Interpreter) -> None:
    """Raises `Restart` where a break comes before an instruction that hands on the traceback of an
    exception made anew: C code, and CPython 3.11 itself, take it for granted that there is one."""
    frame = interpreter.broken_frames[-1]
    if frame.current.name == "WITH_EXCEPT_START":
        traceback_of(interpreter, frame.saved[-1])
