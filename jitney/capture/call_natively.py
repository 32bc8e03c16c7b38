"""Python functions that are called for real, on values of the frame."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import look_up

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def call_native(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Calls the function for real."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    if function.__module__ == "re" and any(map(callable, (*values, *keywords.values()))):
        raise BreakCapture("callback", f"re.{function.__name__} would call back into Python")
    if any(isinstance(value, re.RegexFlag) and value & re.DEBUG for value in values):
        raise BreakCapture("output", f"re.{function.__name__} prints what it compiles")
    if function.__module__ == "dataclasses":  # it reads a class, be it that of an instance
        for value in (*values, *keywords.values()):
            cls = value if isinstance(value, type) else type(value)
            look_up(interpreter, cls, "__dataclass_fields__")
            if look_up(interpreter, type(cls), "__getattr__") is not ABSENT:
                raise BreakCapture("callback", f"a class is asked of {type(cls).__qualname__}")
    return interpreter.native(function, *values, **keywords)


def call_update_wrapper(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Copies names to a function of the frame's own for real; one from outside changes once the
    graph has run, or breaks."""
    wrapper = interpreter.world.force(args[0] if args else kwargs.get("wrapper"))
    if interpreter.is_owned(wrapper):
        return call_native(interpreter, function, args, kwargs, site)
    return interpreter.call_python(function, args, kwargs, "push" if site is not None else None)


def call_wraps(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """``functools.wraps``: what it gives is called later."""
    return interpreter.native(functools.wraps, *args, **kwargs)


def call_of_gpus(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Calls the function for real; which GPU is current becomes a guard."""
    interpreter.recorder.gpu_asked = True
    return call_native(interpreter, function, args, kwargs, site)
