"""Our frames stay out of the user's tracebacks, and are not what a warning blames."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from types import CodeType

from jitney.errors import CompilerBug, JitneyError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_ours(code: CodeType) -> bool:
    """Whether a frame runs our code or code we generated for ourselves."""
    return code.co_filename.startswith((_PACKAGE, "<jitney"))


def clean(error: BaseException, wrapper: CodeType) -> None:
    """Drops our frames and the wrapper's from the error's traceback, in place. A `CompilerBug`
    keeps them."""
    if isinstance(error, CompilerBug):
        return
    decorators = contextlib.__file__ if isinstance(error, JitneyError) else ""
    kept = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code is not wrapper and not is_ours(code) and code.co_filename != decorators:
            kept.append(entry)
        entry = entry.tb_next
    for before, after in zip(kept, [*kept[1:], None]):
        before.tb_next = after
    error.__traceback__ = kept[0] if kept else None


def warn(message: str) -> None:
    """Warns at the innermost frame that is not ours: a compiled function's own line."""
    level, frame = 2, sys._getframe(1)
    while is_ours(frame.f_code) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
