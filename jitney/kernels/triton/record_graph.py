"""Work recorded as a CUDA graph, so that a recording that fails leaves no trace.

A graph is recorded on a stream that only graphs in the same memory were recorded on. What cuBLAS
works in belongs to the stream and lies in the memory of the first graph that needed it: graphs that
run at once would spoil each other's sums there, and torch from 2.12 on gives that memory back with
whichever graph of the stream dies first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jitney import torch_api
from jitney.gc_paused import gc_paused
from jitney.kernels.triton.load_binary import make_stream

#: Streams whose graphs are dead, by the number of their GPU.
_idle: dict[int, list[torch.cuda.Stream]] = {}


class RecordedGraph(torch_api.GraphWithoutDraws):
    """A graph, with a stream of its own until it dies if it leases one."""

    stream: torch.cuda.Stream | None = None
    _returned: list[torch.cuda.Stream]  # not looked up when the graph dies: modules may be gone

    def lease_stream(self) -> torch.cuda.Stream:
        """A stream of this thread's GPU."""
        device = torch.device("cuda", torch.cuda.current_device())
        self._returned = _idle.setdefault(device.index, [])
        try:
            self.stream = self._returned.pop()
        except IndexError:
            self.stream = make_stream(device)
        return self.stream

    def __del__(self) -> None:
        if self.stream is not None:
            self.reset()  # torch frees what it has for the stream: not once it is another's
            self._returned.append(self.stream)


@contextmanager
def record_into(
    graph: RecordedGraph, pool: Any = None, stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """A scope in which what this thread issues to its GPU becomes ``graph``, in a memory ``pool``
    of torch's allocator that others on ``stream`` share, or one of its own.

    Garbage is not collected meanwhile: a CUDA graph among it would die, which CUDA does not allow
    this thread then. Where recording fails, torch leaves the graph's stream the current one and its
    allocator recording; here the error finds both as they were.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    stream = graph.lease_stream() if stream is None else stream
    with gc_paused():
        try:
            with torch.cuda.stream(stream), torch.cuda.graph(graph, pool, stream, "thread_local"):
                yield
        except BaseException:
            torch_api.abandon_recording(graph, pool)
            raise
