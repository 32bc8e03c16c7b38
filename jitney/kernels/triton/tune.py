"""Choices by measurement, bounded in time and remembered on disk across processes.

A choice has a key that says what was asked (the operation, its sizes, its dtype); what was
measured is kept under the device's name, the versions of torch and Triton, and that key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from jitney.config import Config
from jitney.disk_cache import DiskCache, open_cache
from jitney.events import log
from jitney.kernels.triton.record_graph import RecordedGraph, record_into

Choice = TypeVar("Choice")

#: Seconds of measuring per graph compiled; what is left then gets the model's choice.
SECONDS = 20.0
#: Microseconds one recorded measurement should last, so that the clock's error does not matter.
SPAN = 400.0
#: What shorter than this (microseconds) runs is mostly latency, which overlaps with other kernels
#: in a program: BERT's kernels of 3 to 6 µs were 18% shorter by themselves, its step 2.5% longer.
SHORTEST = 8.0
#: A measurement that promises less than this share is taken for noise.
MARGIN = 0.03


class Tuner:
    """Answers `choose`. ``cache`` None: nothing is kept. Used while one graph is compiled."""

    def __init__(self, device: str, cache: DiskCache | None, seconds: float = SECONDS) -> None:
        import triton  # slow to import, and a graph that is built already needs none of it

        self.machine = f"{device} torch {torch.__version__} triton {triton.__version__}"
        self.cache, self.left = cache, seconds
        self._costs: dict[str, dict[str, float]] = {}

    def costs(self, key: str) -> dict[str, float]:
        """What was measured for a choice, by the ``repr`` of its candidates; empty if nothing."""
        content = None
        if key not in self._costs and self.cache is not None:
            content = self.cache.get(self._path(key))
        if content is not None:
            self._costs[key] = json.loads(content)
        return self._costs.get(key, {})

    def known(self, key: str, candidates: Sequence[Choice]) -> Choice | None:
        """The best candidate, if all are remembered: nothing is measured."""
        costs = self.costs(key)
        if not costs.keys() >= {repr(c) for c in candidates}:
            return None
        return _overruling(candidates, costs)

    def choose(
        self, key: str, candidates: Sequence[Choice], measure: Callable[[Choice], float]
    ) -> Choice:
        """The candidate with the least ``measure`` (microseconds; infinity: it does not work;
        OutOfMemoryError: it cannot be told now, and nothing is remembered).

        ``candidates[0]`` is the model's choice, which stands where time has run out or little is
        won; ``repr`` tells candidates apart, also between processes.
        """
        found = self.known(key, candidates)
        if found is not None or len(candidates) == 1:
            return candidates[0] if found is None else found
        if self.left <= 0:
            log.emit("tuned", key=key, choice=repr(candidates[0]), reason="no time is left")
            return candidates[0]
        start = time.perf_counter()
        try:
            costs = self._costs[key] = {repr(c): measure(c) for c in candidates}
        except torch.OutOfMemoryError:
            reason = "memory does not suffice to measure"
            log.emit("tuned", key=key, choice=repr(candidates[0]), reason=reason)
            return candidates[0]
        finally:
            self.left -= time.perf_counter() - start
        best = _overruling(candidates, costs)
        if self.cache is not None:
            self.cache.put(self._path(key), json.dumps(costs).encode())
        log.emit("tuned", key=key, choice=repr(best), reason="measured", costs=costs)
        return best

    def _path(self, key: str) -> str:
        return f"tuned {self.machine}\n{key}"


def _overruling(candidates: Sequence[Choice], costs: Mapping[str, float]) -> Choice:
    """The fastest, where that overrules the model's choice, the first."""
    model = costs[repr(candidates[0])]
    best = min(candidates, key=lambda c: costs[repr(c)])
    wins = model >= SHORTEST and costs[repr(best)] < (1 - MARGIN) * model
    return best if wins else candidates[0]


def open_tuner(device: str, settings: Config) -> Tuner | None:
    """The tuner a configuration asks for; it remembers where other things are kept."""
    if not settings.max_autotune or not torch.cuda.is_available():
        return None
    return Tuner(device, open_cache(settings))


def microseconds(run: Callable[[], object]) -> float:
    """How long the GPU takes for what ``run`` issues on the current stream, launches included as
    inside a CUDA graph: the median of 5 replays of many ``run``s. ``run`` must be capturable.

    Everything ``run`` reads is warm in the L2 cache if it fits: vary the operands inside it
    where that would flatter (weights read once per step).
    """
    run()
    once = _replayed(run, 3)
    repeats = max(1, min(200, int(SPAN / max(once, 1.0))))
    return once if repeats <= 3 else _replayed(run, repeats)


def _replayed(run: Callable[[], object], repeats: int) -> float:
    torch.cuda.synchronize()
    graph = RecordedGraph()
    with record_into(graph):
        for _ in range(repeats):
            run()
    times = []
    graph.replay()
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / repeats)
    return sorted(times)[2]
