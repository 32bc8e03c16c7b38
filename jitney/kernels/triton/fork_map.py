"""A function over many items in forked processes, for work that holds the interpreter's lock.

A child does Python and its libraries' work and never touches CUDA, whose state does not survive
a fork. What a child could not do (it died, it raised, it took too long) is done in this process.
"""

from __future__ import annotations

import io
import os
import pickle
import selectors
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from jitney.events import log

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds all children together may take before they count as stuck.
PATIENCE = 120.0


def fork_map(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> list[Result]:
    """``[function(item) for item in items]``, by up to ``processes`` children that take the next
    item as they come free. Results are pickled. Raises what ``function`` raises."""
    count = min(processes, len(items), len(os.sched_getaffinity(0)))
    found: dict[int, Result] = {}
    if count > 1:
        found = _by_children(function, items, count)
    return [found[i] if i in found else function(item) for i, item in enumerate(items)]


def _by_children(
    function: Callable[[Item], Result], items: Sequence[Item], count: int
) -> dict[int, Result]:
    tickets, write = os.pipe()  # a queue: a read of two bytes takes the next item
    os.write(write, b"".join(i.to_bytes(2) for i in range(min(len(items), 1 << 14))))
    os.close(write)
    children: dict[int, int] = {}  # the end to read a child's results from, and its process
    for _ in range(count):
        read, write = os.pipe()
        with warnings.catch_warnings():
            # Python warns of other threads' locks; what a child then waits for is PATIENCE's.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process == 0:
            _child(function, items, tickets, write)
        os.close(write)
        children[read] = process
    os.close(tickets)
    return _collect(children)


def _child(
    function: Callable[[Item], Result], items: Sequence[Item], tickets: int, write: int
) -> None:
    """Works items off and ends the process, whatever happens."""
    try:
        with os.fdopen(write, "wb") as out:
            while ticket := os.read(tickets, 2):
                number = int.from_bytes(ticket)
                with suppress(Exception):  # the parent does it again and gets the error itself
                    pickle.dump((number, function(items[number])), out)
    finally:
        os._exit(0)


def _collect(children: dict[int, int]) -> dict[int, Result]:
    """The results of all children, who are gone when this returns."""
    until = time.monotonic() + PATIENCE
    received: dict[int, bytearray] = {read: bytearray() for read in children}
    with selectors.DefaultSelector() as selector:
        for read in children:
            selector.register(read, selectors.EVENT_READ)
        while selector.get_map() and (ready := selector.select(until - time.monotonic())):
            for key, _ in ready:
                data = os.read(key.fd, 1 << 20)
                received[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
        for key in selector.get_map().values():
            log.emit("stuck_process", process=children[key.fd], seconds=PATIENCE)
            os.kill(children[key.fd], signal.SIGKILL)
    found: dict[int, Result] = {}
    for read, process in children.items():
        os.close(read)
        os.waitpid(process, 0)
        found |= _unpickled(bytes(received[read]))
    return found


def _unpickled(data: bytes) -> dict[int, Result]:
    """Numbered results, one after the other; the last may be cut short."""
    found: dict[int, Result] = {}
    stream = io.BytesIO(data)
    with suppress(EOFError, pickle.UnpicklingError):
        while stream.tell() < len(data):
            number, result = pickle.load(stream)
            found[number] = result
    return found
