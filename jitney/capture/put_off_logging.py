"""Logging calls: they are put off until the graph has run, and log values as they are now."""

from __future__ import annotations

import logging
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import deferred
from jitney.capture.callbacks import TEXTS
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import Kind
from jitney.capture.lookups import look_up
from jitney.capture.symbols import SYMBOLS
from jitney.capture.told_later import refuse_own_code
from jitney.capture.tracebacks import traceback_of
from jitney.capture.world import is_identity

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Whose text never changes.
_UNCHANGING = frozenset(
    (int, float, bool, complex, str, bytes, type(None), types.FunctionType)
    + (torch.Size, torch.device, range, slice)
)
_LEVELS = {
    "Logger.debug": logging.DEBUG,
    "Logger.info": logging.INFO,
    "Logger.warning": logging.WARNING,
    "Logger.error": logging.ERROR,
    "Logger.critical": logging.CRITICAL,
}
_KEYWORDS = {"exc_info", "stack_info", "stacklevel", "extra"}


def put_off(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> None:
    """A logging call, put off until the graph has run: it logs values as they are now."""
    logger, *values = forced(interpreter, args)
    keywords = forced_keywords(interpreter, kwargs)
    name = function.__qualname__
    told = keywords.get("exc_info", name == "Logger.exception")
    if told or keywords.get("stack_info"):
        exception = told if isinstance(told, BaseException) else interpreter.current_exception()
        if exception is not None:
            traceback_of(interpreter, exception)  # it is raised for real
        raise BreakCapture("traceback", f"{name} tells of an exception, or of the stack")
    values = [_as_it_is(interpreter, name, value) for value in values]
    keywords = {key: _as_it_is(interpreter, name, value) for key, value in keywords.items()}
    level = _LEVELS.get(name, values[0] if values else None)
    _refuse_own_code(interpreter, logger, level if type(level) is int else sys.maxsize)
    said = values if name in _LEVELS else values[1:]
    if said and type(level) is int and keywords.keys() <= _KEYWORDS and _finds_callers(logger):
        place = _place_of(interpreter, keywords.get("stacklevel", 1))
        keywords = {"extra": keywords.get("extra")}
        function, values = deferred.log_at, [level, place, *said]
    interpreter.deferred.append((function, (logger, *values), keywords))


def _refuse_own_code(interpreter: Interpreter, logger: logging.Logger, level: int) -> None:
    """Breaks where a record would be told to code of the program's: the frame may read its state.
    Assumes that it is not where it is not now."""
    world = interpreter.world
    if interpreter.is_owned(logger):
        raise BreakCapture("logging", "a logger of the program's own would be told later")
    source = world.source_of(logger)
    if source is not None:
        world.guard(Kind.IS, source, logger)
    refuse_own_code(interpreter, deferred.asking_for_own_code(logger, level), "logging")


def _finds_callers(logger: Any) -> bool:
    """Whether its records name the line that logs, as the standard library's do."""
    own = all(
        getattr(type(logger), name, None) is getattr(logging.Logger, name)
        for name in ("_log", "findCaller")
    )
    return own and bool(getattr(logging, "_srcfile", None))


def _place_of(interpreter: Interpreter, level: Any) -> tuple[str, int, str]:
    """File, line and function of the ``level``-th frame that logs, itself the first, those of
    `logging` aside; of the outermost one that is captured where it is further out."""
    inside = os.path.normcase(logging.addLevelName.__code__.co_filename)
    frames = [f for f in interpreter.frames if os.path.normcase(f.code.co_filename) != inside]
    frames = frames or interpreter.frames
    frame = frames[-min(max(int(level), 1), len(frames))]
    return frame.code.co_filename, frame.current.line, frame.code.co_name


def _as_it_is(interpreter: Interpreter, name: str, value: Any) -> Any:
    """What would print the same later, after changes to ``value``; breaks where nothing does."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        raise BreakCapture("deferred-tensor", f"{name} is given a tensor")
    if kind in (list, tuple):
        return kind([_as_it_is(interpreter, name, item) for item in value])
    if kind is dict:
        return {key: _as_it_is(interpreter, name, item) for key, item in value.items()}
    if kind in _UNCHANGING or isinstance(value, (*SYMBOLS, BaseException)) or is_identity(value):
        return value
    if any(look_up(interpreter, kind, hook) is not getattr(object, hook) for hook in TEXTS):
        raise BreakCapture("deferred-state", f"{name} is given a {kind.__qualname__}")
    return value
