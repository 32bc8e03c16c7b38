"""Exceptions that a handler of a signal raises (a time limit of the program's, for one).

They come between any two instructions, also of ours: no error of the code that was being run, they
go through to the caller.
"""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import Any


def raise_if_of_signal(error: BaseException) -> None:
    """Raises the exception of a signal's handler that ``error`` is, or was raised from, if any."""
    cause: BaseException | None = error
    while cause is not None:
        if is_of_signal(cause):
            raise cause from cause.__cause__
        cause = cause.__cause__


def is_of_signal(error: BaseException) -> bool:
    """Whether a handler of a signal raised ``error``, itself or in what it called."""
    caught = error.__traceback__
    if caught is None or caught.tb_next is None:  # C code raised it where it is caught
        return False
    handlers = _handlers()
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(caught.tb_next))


def _handlers() -> set[CodeType]:
    """The code of all handlers that are Python's."""
    found = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    return {code for code in found if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs first where a function, a method, a partial or an object is called."""
    while not hasattr(handler, "__code__"):
        inner = getattr(handler, "func", None) or getattr(handler, "__func__", None)
        inner = inner or getattr(type(handler), "__call__", None)
        if inner is None or inner is handler or type(handler).__module__ == "builtins":
            return None
        handler = inner
    code = handler.__code__
    return code if isinstance(code, CodeType) else None
