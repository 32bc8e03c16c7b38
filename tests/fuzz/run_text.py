"""Programs that are text: run, with their lines known to tracebacks and to capture."""

from __future__ import annotations

import linecache
from typing import Any


def run_text(text: str, name: str, names: dict[str, Any]) -> None:
    """Runs a module's source as the file ``name`` with these global ``names``, and puts in what it
    defines. Raises SyntaxError where it is none."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), names)
