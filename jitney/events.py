"""The log that stages of a compile write to: facts, not text.

`jitney.diagnostics` turns it into reports; nothing that compiles reads it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One fact: its ``kind`` ("graph_break", "recompile", "stage", "kernel", …) and its data.

    ``at``, and durations, are in seconds of `time.perf_counter`.
    """

    kind: str
    at: float
    data: dict[str, Any] = field(default_factory=dict)


class Log:
    """The last events of the process, and listeners told of each as it comes. Thread-safe."""

    def __init__(self, keep: int = 20000) -> None:
        self._events: deque[Event] = deque(maxlen=keep)
        self._listeners: tuple[Callable[[Event], None], ...] = ()
        self._readers: frozenset[Callable[[Event], None]] = frozenset()
        self._lock = threading.Lock()

    def emit(self, kind: str, /, **data: Any) -> None:
        """Adds a fact and tells the listeners."""
        event = Event(kind, time.perf_counter(), data)
        self._events.append(event)
        for listener in self._listeners:
            listener(event)

    @contextmanager
    def stage(self, name: str, /, **data: Any) -> Iterator[None]:
        """Times a stage of the compile: emits "stage_start", then "stage" with ``seconds``."""
        self.emit("stage_start", name=name, **data)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.emit("stage", name=name, seconds=time.perf_counter() - start, **data)

    def events(self, kind: str | None = None) -> list[Event]:
        """A snapshot, oldest first; of one kind if given."""
        return [e for e in list(self._events) if kind is None or e.kind == kind]

    def listen(self, listener: Callable[[Event], None], reads: bool = False) -> Callable[[], None]:
        """Calls ``listener`` with each event from now on; returns how to stop it. ``reads``: it
        wants what a compile emits on its way (graphs, decisions, code), so none may be left out."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self._readers |= {listener} if reads else set()

        def stop() -> None:
            with self._lock:
                self._readers -= {listener}
                self._listeners = tuple(x for x in self._listeners if x is not listener)

        return stop

    @property
    def heard(self) -> bool:
        """Is anyone listening? Texts that cost time to make are worth it only then."""
        return bool(self._listeners)

    @property
    def read(self) -> bool:
        """Does a listener want all that a compile emits, so that none may come from a cache?"""
        return bool(self._readers)

    def clear(self) -> None:
        """Forgets everything so far."""
        self._events.clear()


log = Log()
