"""`JITNEY_DEBUG=1..6`: every stage of every compile in numbered files.

1 a summary at exit, 2 also the FX graphs, 3 the loop nests, 4 fusion's decisions, 5 the kernels'
source, 6 the program after every pass. Files go to `JITNEY_DEBUG_DIR` or ./jitney_debug/PID.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from jitney.diagnostics import render
from jitney.diagnostics.logs import Format, body, entry, fusion, loops, tell
from jitney.diagnostics.report import report
from jitney.events import Event, log

# event kind → (level from which it is dumped, how it reads)
DUMPED: dict[str, tuple[int, Format]] = {
    "entry": (2, entry),
    "graph": (2, body),
    "program": (3, loops),
    "fusion": (4, fusion),
    "llvm module": (5, body),
    "kernel": (5, body),
    "pass": (6, loops),
}
# Fields whose texts tell the files of one kind apart.
NAMES = ("function", "stage", "name", "step", "after")


class Dump:
    """A listener that writes numbered files into ``folder``, and says so once where it cannot: the
    program goes on. Thread-safe."""

    def __init__(self, level: int, folder: Path) -> None:
        self.level, self.folder = level, folder
        self.written = 0
        self.lock = threading.Lock()
        self.failed = False

    def __call__(self, event: Event) -> None:
        """Writes the event if its kind is of the level asked for, or a lower one."""
        level, reads = DUMPED.get(event.kind, (99, str))
        if self.level < level:
            return
        words = [event.kind.replace(" ", "-")]
        words += [str(event.data[k]) for k in NAMES if isinstance(event.data.get(k), str)]
        name = re.sub(r"[^\w-]+", "-", "_".join(words))[:60].strip("_-")
        with self.lock:
            self.written += 1
            number = self.written
        self.write(f"{number:04d}_{name}.txt", lambda: reads(event.data))

    def finish(self) -> None:
        """Writes the summary of everything so far."""
        self.write("summary.txt", lambda: render.as_text(report(log.events())))

    def write(self, name: str, text: Callable[[], str]) -> None:
        """Writes one file. An error here is none of the compiler's, nor of the program's."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text() + "\n", encoding="utf-8")
        except Exception as error:  # noqa: BLE001 - whatever it is, the compile goes on
            if not self.failed:
                tell(f"JITNEY_DEBUG: {name} cannot be written: {type(error).__name__}: {error}")
            self.failed = True


def dump(level: int, folder: str | None = None) -> Callable[[], None]:
    """Starts dumping; returns how to stop, which writes the summary."""
    target = Path(folder or f"jitney_debug/{os.getpid()}").absolute()  # the program may chdir
    listener = Dump(level, target)
    stop = log.listen(listener)

    def finish() -> None:
        stop()
        listener.finish()

    atexit.register(finish)
    return finish
