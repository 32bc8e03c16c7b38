"""The errors, one class for each answer to "who has to act?".

`UserError`: the call or the code is wrong; the message names the line and a fix.
`Unsupported`: we cannot capture this; a graph break, or an error under ``fullgraph=True``.
`CompilerBug`: our fault; the message asks for a report. A miscompile is never silent.
"""

from __future__ import annotations

import linecache
from typing import Any

#: What torch's operations raise. Anything else is an error of ours, or an interrupt.
LIBRARY_ERRORS = (RuntimeError, IndexError, ValueError, MemoryError)

#: A *rerun*: a compiled graph raises, and eager does its work once more, from where it began, so
#: that the error, or the value, is eager's. ``rerun_on`` are the errors on which this is done: the
#: graph has then left no trace (`graph/put_back`). The glue reruns the frame
#: (`capture/build_glue`), `graph/rerun_eagerly` a graph that has none. Other errors go to the
#: caller.
RerunOn = tuple[type[Exception], ...]


class JitneyError(Exception):
    """Base of all our errors; ``id`` is stable across versions."""

    id = "jitney"


class UserError(JitneyError, RuntimeError):
    """The user's own mistake: wrong arguments, a ``fullgraph=True`` that cannot hold. (For these
    torch.compile raises RuntimeErrors, which programs catch.)"""

    id = "user-error"


class UnknownArgument(UserError, TypeError):
    """An argument by a name that is none, which Python would answer with a bare TypeError."""


class Unsupported(JitneyError):
    """Code that cannot be captured; ``kind`` is a stable id, ``hint`` says what to write instead.

    ``where`` is the user's "file:line" once known; ``forbidden``: the program has said, by
    ``torch._dynamo.error_on_graph_break``, that a break there is an error. ``step``: of what a
    graph cannot do, at which instruction of its capture it came to be in the graph.
    """

    id = "unsupported"

    def __init__(
        self, kind: str, message: str, hint: str = "", where: str = "", forbidden: bool = False
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint, self.where = kind, message, hint, where
        self.forbidden = forbidden
        self.step: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.kind, self.message, self.hint, self.where, self.forbidden
        return type(self), given, {"step": self.step}

    def __str__(self) -> str:
        """The message, then the user's line and the hint where they are known."""
        file, _, line = self.where.rpartition(":")
        text = linecache.getline(file, int(line)).strip() if file and line.isdigit() else ""
        found = [f"  at {self.where}" + (f": {text}" if text else "")] if self.where else []
        return "\n".join([self.message, *found, *([f"  hint: {self.hint}"] if self.hint else [])])

    @property
    def is_programs(self) -> bool:
        """Whether the program itself raises an error there. (What torch refuses of tensors without
        values, it may take of others.)"""
        return self.kind == "exception"


class FullGraphError(Unsupported, RuntimeError):
    """`Unsupported`, as callers get it: a RuntimeError, as torch.compile's is."""

    @classmethod
    def of(cls, error: Unsupported) -> FullGraphError:
        """The same as ``error``."""
        return cls(error.kind, error.message, error.hint, error.where, error.forbidden)


class LeftToEager(JitneyError):
    """A check of a compiled graph found a case in which eager gives another answer: an index
    outside its dimension, numbers too large for a transformed convolution, a write to a leaf. Eager
    runs instead (`rerun_eagerly`); only a direct caller of a compiled graph sees this error."""

    id = "left-to-eager"

    def __str__(self) -> str:
        """Why; native code gives no text."""
        return super().__str__() or "a check of the compiled graph failed"


class CompilerBug(JitneyError):
    """An invariant of ours does not hold."""

    id = "compiler-bug"


class WrongForecast(CompilerBug):
    """torch's op gives at run time what its fakes did not foresee; eager runs the frame where the
    graph writes no input."""
