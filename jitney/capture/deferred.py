"""Functions that captured frames call after their graph has run."""

from __future__ import annotations

import functools
import logging
import logging.handlers
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


#: Handlers that write records to a stream, a file, elsewhere or nowhere.
_WRITING = (
    logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort),
    logging.handlers.RotatingFileHandler, logging.handlers.TimedRotatingFileHandler,
    logging.handlers.WatchedFileHandler, logging.handlers.SocketHandler,
    logging.handlers.DatagramHandler, logging.handlers.SysLogHandler, logging.handlers.HTTPHandler,
)  # fmt: skip
#: Packages whose handlers and formatters keep nothing that a compiled function reads.
_TOOLS = ("_pytest", "absl", "colorlog", "rich", "torch", "tqdm")
_PLAIN = (logging.Logger, logging.RootLogger)
_STEPS = ("isEnabledFor", "makeRecord", "handle", "callHandlers", "filter", "hasHandlers")


def runs_own_code(logger: logging.Logger, level: int) -> bool:
    """Whether a record of ``level`` goes through code of the program's: its state, which the
    frame may read, would change later than in eager."""
    cls = type(logger)
    if cls not in _PLAIN and any(
        getattr(cls, name, None) is not getattr(logging.Logger, name) for name in _STEPS
    ):
        return True
    if not logger.isEnabledFor(level):
        return False
    if logging.getLogRecordFactory() is not logging.LogRecord or _filters_by_own(logger):
        return True
    at: logging.Logger | None = logger
    while at is not None:
        if any(level >= handler.level and _is_own(handler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _is_own(handler: logging.Handler) -> bool:
    if _filters_by_own(handler):
        return True
    if type(handler) not in _WRITING and not _is_of_tools(handler):
        return True
    stream = getattr(handler, "stream", None)
    if stream not in (None, sys.stdout, sys.stderr) and not _is_of_c(stream):
        return True
    form = handler.formatter
    return not (form is None or type(form) is logging.Formatter or _is_of_tools(form))


def _is_of_c(stream: Any) -> bool:
    write = getattr(type(stream), "write", None)
    return write is not None and not isinstance(write, types.FunctionType)


def _filters_by_own(told: logging.Filterer) -> bool:
    return any(type(item) is not logging.Filter for item in told.filters)


def _is_of_tools(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in _TOOLS


@functools.lru_cache(maxsize=64)
def asking_for_own_code(logger: logging.Logger, level: int) -> functools.partial[bool]:
    """`runs_own_code` without an argument, the same one each time."""
    return functools.partial(runs_own_code, logger, level)


def prints_by_own_code() -> bool:
    """Whether what is printed to ``sys.stdout`` goes through code of the program's, or raises."""
    stream = sys.stdout
    if stream is None:
        return False
    tool = type(stream).__module__.split(".")[0] in _TERMINALS
    return getattr(stream, "closed", False) is True or not (tool or _is_of_c(stream))


#: Packages whose streams write on to a terminal or a notebook.
_TERMINALS = ("ipykernel", "colorama", "_pytest")


def warns_by_own_code() -> bool:
    """Whether warnings are shown by code of the program's. (A list of `catch_warnings` is read
    once the call is over.)"""
    shows = getattr(warnings.showwarning, "__module__", "")
    return shows not in ("warnings", "_py_warnings", "logging")


def is_error(category: type) -> bool:
    """Whether a filter may turn warnings of this category into exceptions."""
    read = getattr(warnings, "_get_filters", lambda: warnings.filters)  # Python >= 3.14
    return any(row[0] == "error" and issubclass(category, row[2]) for row in read())


@functools.cache
def asking(category: type) -> functools.partial[bool]:
    """`is_error` without an argument, the same one each time."""
    return functools.partial(is_error, category)


#: Told by `warnings` where filters change: of C, up to Python 3.13.
FILTERS_MUTATED = [f for f in [getattr(warnings, "_filters_mutated", None)] if f is not None]


def filters_change(calls: Sequence[tuple[Any, ...]]) -> bool:
    """Whether filters of warnings change among the deferred ``calls``."""
    return any(call[0] in FILTERS_MUTATED for call in calls)


def warnings_as_errors(calls: Sequence[tuple[Any, ...]]) -> AbstractContextManager[object]:
    """Where the deferred ``calls`` change filters, what warns within raises: by those filters eager
    may raise too, or record it, or be silent."""
    return _every_warning_raises() if filters_change(calls) else nullcontext()


@contextmanager
def _every_warning_raises() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
