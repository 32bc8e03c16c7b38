"""Where in the program a call stands, so that what torch warns of names that line, and is told once
a line, as where eager calls (twice where the code is of no module)."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from jitney.capture.frame import Frame

#: Frames that a call stands in. No warning of torch's names one further out, but of modules' calls,
#: which are read over: there it names the last one.
_DEPTH = 3


@dataclass(frozen=True)
class ProgramLine:
    """Of a module, which it does not keep alive."""

    file: str
    line: int
    function: str
    module: str


def lines_of(frames: Sequence[Frame]) -> tuple[ProgramLine, ...]:
    """Those that ``frames``, outermost first, are at; innermost first."""
    return tuple([_line_of(frame) for frame in _told(frames)])


def call_from(
    frames: Sequence[Frame], func: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """``func(*args, **kwargs)``, called by the lines that ``frames`` are at."""
    places = [(_line_of(frame), frame.globals) for frame in _told(frames)]
    return _call(places, func, args, kwargs)


def call_again(
    lines: Sequence[ProgramLine], func: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """``func(*args, **kwargs)``, called by ``lines``."""
    places = [(line, _globals_of(line)) for line in lines]
    return _call(places, func, args, kwargs)


def _call(
    places: Sequence[tuple[ProgramLine, dict[str, Any]]],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    for line, globals_ in places:
        args, kwargs = (func, args, kwargs), {}
        func = FunctionType(_calling(line), globals_)
    return func(*args, **kwargs)


def _told(frames: Sequence[Frame]) -> list[Frame]:
    found = [*reversed(frames[-_DEPTH:])]
    return [*found, *found[-1:] * (_DEPTH - len(found))]


def _line_of(frame: Frame) -> ProgramLine:
    code, module = frame.code, str(frame.globals.get("__name__"))
    return ProgramLine(code.co_filename, frame.current.line, code.co_name, module)


def _globals_of(line: ProgramLine) -> dict[str, Any]:
    module = sys.modules.get(line.module)
    if module is None:  # torch's C++ looks for the builtins
        return {"__name__": line.module, "__builtins__": builtins}
    return vars(module)


@lru_cache(maxsize=1024)
def _calling(line: ProgramLine) -> CodeType:
    caller = lambda func, args, kwargs: func(*args, **kwargs)  # noqa: E731
    place = {"co_filename": line.file, "co_firstlineno": line.line, "co_name": line.function}
    return caller.__code__.replace(**place)  # type: ignore[arg-type]
