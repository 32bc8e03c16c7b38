"""A function over many items in forked processes, for work that holds the interpreter's lock.

Forking a process that holds a GPU takes 20 to 30 ms. So only the first worker is forked here,
before the items are known; each worker forks two others, and meanwhile this process goes on.
A worker does Python and its libraries' work and never touches CUDA, whose state does not survive
a fork. What a worker could not do (it died, it raised, it took too long) is done in this process.
"""

from __future__ import annotations

import io
import os
import pickle
import selectors
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from jitney.events import log

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds all workers together may take before they count as stuck.
PATIENCE = 120.0
_TICKET = struct.Struct("<iIQ")  # an item's number, size and place in the box; or the end
_END = _TICKET.pack(-1, 0, 0)
_MOST = 2000  # tickets; as many fit into a pipe that nobody reads yet


class ForkedWorkers(Generic[Item, Result]):
    """Up to ``processes`` workers that take the next item as they come free: `give` all items,
    `end`, then ask for `results`. Items and results are pickled; on one core there are none."""

    def __init__(self, function: Callable[[Item], Result], processes: int) -> None:
        self._function = function
        self._items: list[Item] = []
        self._place = 0  # where in the box the next item goes
        self._count = min(processes, len(os.sched_getaffinity(0)))
        if self._count > 1:
            self._fork()

    def _fork(self) -> None:
        self._box = tempfile.TemporaryFile(buffering=0)  # closed by `results`
        tickets, write = os.pipe()
        self._tickets = io.FileIO(write, "wb")  # closed when forgotten: the workers then end
        pipes = [os.pipe() for _ in range(self._count)]
        with warnings.catch_warnings():
            # Python warns of other threads' locks; what a worker then waits for is PATIENCE's.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._first = os.fork()
            except (OSError, RuntimeError):  # no memory; a library's hook that forbids it just now
                self._count = 1
        if self._count == 1:
            self._tickets.close()
            for end in (tickets, *(end for pipe in pipes for end in pipe)):
                os.close(end)
            return
        if self._first == 0:
            self._tickets.close()
            os.setpgid(0, 0)  # the workers can be ended together
            _Worker(self._function, self._box.fileno(), tickets, [w for _, w in pipes]).run(0)
        os.close(tickets)
        for _, write in pipes:
            os.close(write)
        self._results = [io.FileIO(read) for read, _ in pipes]

    def give(self, item: Item) -> None:
        """One more item, to be taken up after those before."""
        self._items.append(item)
        if self._count > 1 and len(self._items) <= _MOST:
            data = pickle.dumps(item)
            self._box.write(data)
            self._tickets.write(_TICKET.pack(len(self._items) - 1, len(data), self._place))
            self._place += len(data)

    def end(self) -> None:
        """Says that there are no more items. Idle workers end, and with them the cost of their
        existence: a copy of every page that this process writes to."""
        if self._count > 1:
            self._tickets.write(_END * self._count)
            self._tickets.close()

    def results(self) -> list[Result]:
        """``[function(item) for item in items]``; the workers are gone when this returns. Raises
        what ``function`` raises."""
        found = self._collect() if self._count > 1 else {}
        items = enumerate(self._items)
        return [found[i] if i in found else self._function(item) for i, item in items]

    def _collect(self) -> dict[int, Result]:
        until = time.monotonic() + PATIENCE
        received = {file.fileno(): bytearray() for file in self._results}
        with selectors.DefaultSelector() as selector:
            for file in self._results:
                selector.register(file, selectors.EVENT_READ)
            while selector.get_map() and (ready := selector.select(until - time.monotonic())):
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 20)
                    received[key.fd] += data
                    if not data:
                        selector.unregister(key.fileobj)
            if selector.get_map():
                log.emit("stuck_process", process=self._first, seconds=PATIENCE)
                os.killpg(self._first, signal.SIGKILL)
        os.waitpid(self._first, 0)
        for file in (*self._results, self._box):
            file.close()
        return {n: result for data in received.values() for n, result in _unpickled(bytes(data))}


class _Worker(Generic[Item, Result]):
    """In a forked process. ``box``: where items lie; ``outs``: every worker's end to write to."""

    def __init__(
        self, function: Callable[[Item], Result], box: int, tickets: int, outs: list[int]
    ) -> None:
        self.function, self.box, self.tickets, self.outs = function, box, tickets, outs

    def run(self, number: int) -> None:
        """Forks the next two of the tree, works items off and ends the process, whatever
        happens."""
        try:
            children = []
            for other in (2 * number + 1, 2 * number + 2):
                if other < len(self.outs):
                    children.append(os.fork())
                    if children[-1] == 0:
                        self.run(other)
            self.work(number)
            for child in children:
                os.waitpid(child, 0)
        finally:
            os._exit(0)

    def work(self, number: int) -> None:
        """Does items until the tickets end."""
        for other, out in enumerate(self.outs):
            if other != number:
                os.close(out)
        with os.fdopen(self.outs[number], "wb") as file:
            while (ticket := os.read(self.tickets, _TICKET.size)) and ticket != _END:
                item, size, place = _TICKET.unpack(ticket)
                with suppress(Exception):  # the parent does it again and gets the error itself
                    result = self.function(pickle.loads(os.pread(self.box, size, place)))
                    pickle.dump((item, result), file)


def _unpickled(data: bytes) -> list[tuple[int, Any]]:
    """Numbered results, one after the other; the last may be cut short."""
    found: list[tuple[int, Any]] = []
    stream = io.BytesIO(data)
    with suppress(EOFError, pickle.UnpicklingError):
        while stream.tell() < len(data):
            found.append(pickle.load(stream))
    return found
