"""Where in the program a call stands, so that what torch warns of names that line, and is told once
a line, as where eager calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from jitney.capture.frame import Frame

#: Frames that a call stands in. No warning of torch's names one further out, but of modules' calls,
#: which are read over: there it names the last one.
_DEPTH = 3


@dataclass(frozen=True, eq=False)
class ProgramLines:
    """A file, a line, a function's name and its globals for each frame, innermost first."""

    rows: tuple[tuple[str, int, str, dict[str, Any]], ...]

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``func(*args, **kwargs)``, called by these lines."""
        for file, line, name, globals_ in self.rows:
            args, kwargs = (func, args, kwargs), {}
            func = FunctionType(_calling(file, line, name), globals_)
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> ProgramLines:
        """Itself: globals are the program's."""
        return self


def lines_of(frames: Sequence[Frame]) -> ProgramLines:
    """Those that ``frames``, outermost first, are at."""
    rows = [
        (frame.code.co_filename, frame.current.line, frame.code.co_name, frame.globals)
        for frame in reversed(frames[-_DEPTH:])
    ]
    return ProgramLines((*rows, *rows[-1:] * (_DEPTH - len(rows))))


@lru_cache(maxsize=1024)
def _calling(file: str, line: int, name: str) -> CodeType:
    caller = lambda func, args, kwargs: func(*args, **kwargs)  # noqa: E731
    return caller.__code__.replace(co_filename=file, co_firstlineno=line, co_name=name)
