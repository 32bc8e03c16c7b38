"""Functions that captured frames call after their graph has run."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import Any


def warn_at(message: str, category: type[Warning], file: str, line: int, module: str) -> None:
    """Issues a warning as if from the user's own line."""
    namespace = getattr(sys.modules.get(module), "__dict__", {})
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, module, registry)


def log_at(
    logger: logging.Logger,
    level: int,
    place: tuple[str, int, str],
    message: Any,
    *args: Any,
    extra: Any = None,
) -> None:
    """A logger's record as if from the user's own file, line and function."""
    if logger.isEnabledFor(level):
        file, line, name = place
        record = logger.makeRecord(
            logger.name, level, file, line, message, args, None, name, extra, None
        )
        logger.handle(record)


def is_error(category: type) -> bool:
    """Whether a filter may turn warnings of this category into exceptions."""
    read = getattr(warnings, "_get_filters", lambda: warnings.filters)  # Python >= 3.14
    return any(row[0] == "error" and issubclass(category, row[2]) for row in read())


@functools.cache
def asking(category: type) -> functools.partial[bool]:
    """`is_error` without an argument, the same one each time."""
    return functools.partial(is_error, category)
