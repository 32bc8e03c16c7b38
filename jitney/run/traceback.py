"""Our frames stay out of the user's tracebacks."""

from __future__ import annotations

import contextlib
import os
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
