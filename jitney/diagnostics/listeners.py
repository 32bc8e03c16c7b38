"""The listeners that the environment asks for: JITNEY_LOGS, JITNEY_DEBUG, and a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from jitney.diagnostics.dumps import dump
from jitney.diagnostics.logs import print_logs, tell
from jitney.diagnostics.progress import show_progress

LEVELS = tuple("123456")  # of JITNEY_DEBUG


def install(environ: Mapping[str, str] | None = None) -> None:
    """Starts what ``environ`` (os.environ) asks for. Called once, when `jitney` is imported."""
    environ = os.environ if environ is None else environ
    if environ.get("JITNEY_LOGS"):
        print_logs(environ["JITNEY_LOGS"])
    level = environ.get("JITNEY_DEBUG", "")
    if level in LEVELS:
        dump(int(level), environ.get("JITNEY_DEBUG_DIR"))
    elif level and level != "0":
        tell(f"JITNEY_DEBUG: {level!r} is not a level; levels are 1 to 6")
    if environ.get("JITNEY_PROGRESS", "1") != "0" and _on_a_terminal():
        show_progress()


def _on_a_terminal() -> bool:
    """Whether someone sees stderr. A program may have none, or an object that only writes."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
