"""Backward graphs that differ in which gradients they are given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import Lock
from typing import Any

from jitney.errors import Unsupported
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
    """The ``likely`` backward graph, without the gradients ``unlikely``; and those without others,
    which ``build(missing)`` makes when a call first misses them. It returns None where that graph
    must be given zeros; where it raises Unsupported, so does every such call. Thread-safe."""

    def __init__(
        self,
        likely: Compiled,
        unlikely: Collection[int],
        build: Callable[[Collection[int]], Compiled | None],
    ) -> None:
        self._made: dict[frozenset[int], Compiled | Unsupported | None] = {
            frozenset(unlikely): likely
        }
        self._build = build
        self._lock = Lock()

    def without(self, missing: Collection[int]) -> tuple[Compiled, Collection[int]]:
        """The graph for a call without the gradients ``missing``, and which gradients that graph
        does not take."""
        found = self._find(frozenset(missing))
        if found is not None:
            return found, missing
        general = self._find(frozenset())
        assert general is not None
        return general, ()

    def _find(self, missing: frozenset[int]) -> Compiled | None:
        with self._lock:
            if missing not in self._made:
                try:
                    self._made[missing] = self._build(missing)
                except Unsupported as reason:
                    self._made[missing] = _without_frames(reason)
            made = self._made[missing]
        if isinstance(made, Unsupported):
            raise _without_frames(made)
        return made


def _without_frames(reason: Unsupported) -> Unsupported:
    """A new error that says the same: one that was raised keeps its frames alive, and those their
    tensors."""
    return Unsupported(reason.kind, reason.message, reason.hint, reason.where)
