"""`JITNEY_DEBUG=1..6`: every stage of every compile in numbered files.

1 a summary at exit, 2 also the FX graphs, 3 the loop nests, 4 fusion's decisions, 5 the kernels'
source, 6 every pass before and after. Files go to `JITNEY_DEBUG_DIR` or ./jitney_debug/PID.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitney.diagnostics import render
from jitney.diagnostics.logs import lazy, shown
from jitney.diagnostics.report import report
from jitney.events import Event, log

# event kind → (level from which it is dumped, fields that hold text)
DUMPED: dict[str, tuple[int, tuple[str, ...]]] = {
    "entry": (2, ("graph", "guard_texts")),
    "graph": (2, ("code",)),
    "program": (3, ("program",)),
    "fusion": (4, ("decision",)),
    "llvm module": (5, ("text",)),
    "kernel": (5, ("source",)),
    "pass": (6, ("before", "after")),
}


class Dump:
    """A listener that writes numbered files into ``folder``. Thread-safe."""

    def __init__(self, level: int, folder: Path) -> None:
        self.level, self.folder = level, folder
        self.written = 0
        self.lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: Event) -> None:
        level, fields = DUMPED.get(event.kind, (99, ()))
        if self.level < level:
            return
        texts = [self.text(event.data[f]) for f in fields if event.data.get(f) is not None]
        if not texts:
            return
        kind = event.kind.replace(" ", "-")
        with self.lock:
            self.written += 1
            number = self.written
        title = shown(event.data, "stage", "name", "step") if level > 2 else ""
        name = re.sub(r"\W+", "_", title or text_name(event.data))[:60].strip("_")
        file = self.folder / f"{number:04d}_{kind}_{name}.txt"
        file.write_text("\n\n".join(texts) + "\n")

    @staticmethod
    def text(value: Any) -> str:
        """Text of a field; tuples a line an item, a program as Python."""
        if hasattr(value, "nodes"):
            from jitney.loops.print_program import print_program

            return print_program(value)
        if isinstance(value, tuple | list):
            return "\n".join(map(str, value))
        return lazy(value)

    def finish(self) -> None:
        """Writes the summary of everything so far."""
        (self.folder / "summary.txt").write_text(render.as_text(report(log.events())) + "\n")


def text_name(data: dict[str, Any]) -> str:
    """A file name's words for a captured or traced graph."""
    words = [str(data[k]) for k in ("name", "stage", "function") if isinstance(data.get(k), str)]
    return " ".join(words)


def dump(level: int, folder: str | None = None) -> Callable[[], None]:
    """Starts dumping; returns how to stop, which writes the summary."""
    target = Path(folder or f"jitney_debug/{os.getpid()}")
    listener = Dump(level, target)
    stop = log.listen(listener)

    def finish() -> None:
        stop()
        listener.finish()

    atexit.register(finish)
    return finish
