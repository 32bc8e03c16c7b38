"""Backward graphs that differ in which gradients they are given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Lock
from typing import Any

from jitney.graph.region import RegionFacts

Compiled = Callable[..., Any]


def unlikely_tangents(facts: RegionFacts) -> tuple[int, ...]:
    """Positions, among the gradients a backward graph takes, of those that a call seldom gives:
    beside a loss (a result of no dimensions) the other results are there to be looked at. None
    where sizes are symbolic."""
    if facts.saved_sizes:
        return ()
    sizes = {r.tangent: r.sizes for r in facts.results if r.tangent is not None}
    others = tuple(sorted(position for position in sizes if sizes[position] != ()))
    return others if len(others) < len(sizes) else ()


class TangentVariants:
    """The likely backward graph, without the gradients ``unlikely``; and the one that takes all,
    which ``build`` makes when a call first gives one of those. Thread-safe."""

    def __init__(
        self, likely: Compiled, unlikely: Collection[int], build: Callable[[], Compiled]
    ) -> None:
        self._likely, self._unlikely, self._build = likely, frozenset(unlikely), build
        self._general: Compiled | None = None
        self._lock = Lock()

    def choose(self, given: Collection[int]) -> tuple[Compiled, Collection[int]]:
        """The graph for a call with the gradients ``given``, and those it does not take."""
        if self._unlikely.isdisjoint(given):
            return self._likely, self._unlikely
        with self._lock:
            if self._general is None:
                self._general = self._build()
        return self._general, ()
