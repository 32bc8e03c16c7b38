"""A finished capture, as the dispatcher keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from jitney.capture.build_glue import Armed, Glue, Linker
from jitney.capture.check_guards import Check
from jitney.capture.guard import Guard
from jitney.capture.place_sources import Habits
from jitney.capture.result import Capture
from jitney.capture.source import Source


@dataclass
class Entry:
    """A compiled version of a frame. ``check(function, *locals)`` says whether ``glue(function,
    *locals)`` may be called; ``build_glue(armed)`` makes the glue for calls of which a native
    program has done part of the check. ``eager``: why its graph is not compiled, if so
    (kinds and texts: errors would keep what they came through alive)."""

    capture: Capture
    guards: tuple[Guard, ...]
    check: Check
    glue: Glue
    build_glue: Callable[[Armed], Callable[[tuple[Any, ...]], Glue]]
    needed: tuple[Source, ...]
    eager: tuple[tuple[str, str], ...] = ()
    habits: Habits = field(default_factory=Habits)
    armings: int = 0
    armed_glue: dict[Any, Callable[[tuple[Any, ...]], Glue]] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One frame to compile: ``arguments`` are its bound locals at entry, in order."""

    function: FunctionType
    arguments: dict[str, Any]
    linker: Linker
    dynamic_sources: frozenset[tuple[Source, int | None]]
    is_resume: bool
