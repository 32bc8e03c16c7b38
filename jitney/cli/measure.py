"""Timing callables against each other: interleaved in one process, warm-up apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

#: ``clock(call, reset, batch)``: seconds of one call, as a mean over ``batch``, after a reset.
Clock = Callable[[Callable[[], object], Callable[[], None], int], float]
NOISY = 0.05  # relative standard deviation from which a result carries a warning


@dataclass(frozen=True)
class Timing:
    """Seconds of each run, in order."""

    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Seconds."""
        return statistics.fmean(self.seconds)

    @property
    def std(self) -> float:
        """Of a sample, in seconds; 0 of a single run."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def p50(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """The 99th percentile; of fewer than 100 runs the largest."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, round(0.99 * len(self.seconds)))]

    @property
    def variation(self) -> float:
        """Standard deviation over mean."""
        return self.std / self.mean if self.mean else 0.0

    def as_data(self) -> dict[str, float | int | bool]:
        """The numbers that every result carries, seconds."""
        return {
            "runs": len(self.seconds),
            "mean": self.mean,
            "std": self.std,
            "p50": self.p50,
            "p99": self.p99,
            "noisy": self.variation > NOISY,
        }


def no_reset() -> None:
    """Nothing to put back between runs."""


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    runs: int = 50,
    seconds: float = 60.0,
    warmup: int = 3,
    reset: Mapping[str, Callable[[], None]] | None = None,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Times every candidate ``runs`` times, one of each in turn.

    Stops early, after at least ten rounds, when ``seconds`` in all are spent: slow workloads get
    fewer runs. ``reset[name]`` is called, untimed, before each run. Calls shorter than 20 µs are
    timed in batches, so that the clock does not count. ``clock``: `timed` unless given.
    """
    clock = clock or timed
    resets = {name: (reset or {}).get(name, no_reset) for name in candidates}
    batch = {}
    for name, call in candidates.items():
        single = min(clock(call, resets[name], 1) for _ in range(max(warmup, 1)))
        batch[name] = 1 if resets[name] is not no_reset else max(1, int(100e-6 / single))
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(runs):
        for name, call in candidates.items():
            samples[name].append(clock(call, resets[name], batch[name]))
        if done >= 9 and time.perf_counter() - start > seconds:
            break
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def timed(call: Callable[[], object], reset: Callable[[], None], batch: int) -> float:
    """Seconds of one call, as a mean over ``batch``."""
    reset()
    start = time.perf_counter()
    for _ in range(batch):
        call()
    return (time.perf_counter() - start) / batch


def timed_by_events(call: Callable[[], object], reset: Callable[[], None], batch: int) -> float:
    """The same on the current CUDA device, from an idle GPU to its last kernel's end."""
    reset()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(batch):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / batch
