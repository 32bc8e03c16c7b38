"""What tells of a frame's variables: ``locals``, ``vars``, ``dir``, and texts run in the frame."""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any

from jitney.capture.builtin_calls import builtin
from jitney.capture.frame import BreakCapture, Raised, Restart, Unread
from jitney.capture.guard import ABSENT

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_MISSING = object()


@builtin(builtins.locals)
def _locals(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """The frame's variables, without those that we add in resume functions."""
    if args or kwargs:
        return interpreter.native(function, *args, **kwargs)  # raises eager's TypeError
    frame, world = interpreter.frames[-1], interpreter.world
    code, found = frame.code, {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = frame.locals.get(name, _MISSING)
        if isinstance(value, types.CellType):
            shadow = world.cell(value)
            try:
                value = value.cell_contents if shadow is None else shadow.get(world)
            except ValueError:
                continue
        if isinstance(value, Unread):
            value = world.read_lazy(value.value, value.source)
        if value is not _MISSING and value is not ABSENT and not name.startswith("<"):
            found[name] = world.force(value)
    return found


@builtin(builtins.exec, builtins.eval)
def _run_text(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """Breaks. Leaves a frame to eager whose dict of variables the text may write to: until Python
    3.13, ``locals()`` and other texts read it again."""
    wrote = function is builtins.exec or "locals" in interpreter.frames[-1].code.co_names
    cause = BreakCapture("c-call", f"builtins.{function.__name__} runs a text")
    if wrote and len(args) == 1 and sys.version_info < (3, 13):
        raise Restart(0, cause)
    raise cause


@builtin(builtins.dir)
def _dir(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if args or kwargs:
        raise BreakCapture("c-call", "builtins.dir looks into an object")
    return sorted(_locals(interpreter, function, args, kwargs, site))


@builtin(builtins.vars)
def _vars(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    if not args:
        return _locals(interpreter, function, args, kwargs, site)
    if len(args) > 1 or kwargs:
        return interpreter.native(function, *args, **kwargs)  # raises eager's TypeError
    owner = interpreter.world.force(args[0])
    try:
        return interpreter.get_attr(owner, "__dict__")
    except Raised as raised:
        error = raised.exception
    if not isinstance(error, AttributeError):
        raise Raised(error)
    raise Raised(TypeError("vars() argument must have __dict__ attribute"))
