"""What a caller may ask of a capture."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.capture.source import Source


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture.

    ``dynamic``: sizes, ints and floats are symbolic from the start (True), never (False), or when
    marked or in ``dynamic_sources`` (None): pairs (source, dim) for a tensor's size, (source,
    None) for a Python int or float that was seen to change. ``compiling``: what the program is
    told that asks whether it is being compiled. ``checks``: a graph in which a check fails leaves
    no trace, whatever it writes (ours). ``bug_is_error``: an error of ours at an instruction raises
    `CompilerBug`; it is a break otherwise.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    dynamic_sources: frozenset[tuple[Source, int | None]] = frozenset()
    compiling: bool = True
    checks: bool = False
    bug_is_error: bool = False
