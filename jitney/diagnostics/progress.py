"""One line on a terminal while a long compile runs, gone when it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from jitney.events import Event, log

PATIENCE = 1.0  # seconds before a compile counts as long


class Progress:
    """A listener that shows the stage under way and how long the compile has run."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.open: list[str] = []
        self.began = 0.0
        self.kernels = 0
        self.visible = False

    def __call__(self, event: Event) -> None:
        """Follows stages and counts kernels; other events do not move the line."""
        if event.kind == "stage_start":
            if not self.open:
                self.began, self.kernels = time.perf_counter(), 0
            self.open.append(event.data["name"])
        elif event.kind == "stage" and self.open:
            self.open.pop()
        elif event.kind == "kernel":
            self.kernels += 1
        else:
            return
        self.show(time.perf_counter() - self.began)

    def show(self, seconds: float) -> None:
        """Draws the line, or takes it away when no stage is open."""
        if self.open and seconds > PATIENCE:
            kernels = f" {self.kernels} kernels," if self.kernels else ""  # a GPU's alone
            text = f"jitney: {self.open[-1]},{kernels} {seconds:.0f} s"
            self.stream.write(f"\r{text:<60}")
            self.visible = True
        elif not self.open and self.visible:
            self.stream.write("\r" + " " * 60 + "\r")
            self.visible = False
        else:
            return
        self.stream.flush()


def show_progress(stream: TextIO | None = None) -> Callable[[], None]:
    """Starts the line on ``stream`` (stderr); returns how to stop."""
    return log.listen(Progress(stream or sys.stderr))
