"""A backward graph compiled once for each set of results that get a gradient."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from torch import fx

from jitney.graph.drop_tangents import drop_tangents
from jitney.graph.region import RegionFacts

Compiled = Callable[..., Any]
Missing = tuple[int, ...]


class TangentVariants:
    """Callable as the backward graph with all gradients given; `without` gives the others.

    The likely one is compiled at once, so that what cannot be compiled is known in time: a region
    with a loss (a result of no dimensions) beside others is differentiated from the loss alone.
    Thread-safe.
    """

    def __init__(
        self, gm: fx.GraphModule, facts: RegionFacts, build: Callable[[fx.GraphModule], Compiled]
    ) -> None:
        self._gm, self._build = gm, build
        found = sorted((r.tangent, r.sizes) for r in facts.results if r.tangent is not None)
        self._tangents = len(found)
        self._known: dict[Missing, Compiled] = {}
        self._lock = Lock()
        losses = [position for position, sizes in found if sizes == ()]
        rest = tuple(position for position, sizes in found if sizes != ())
        self.without(rest if losses else ())

    def __call__(self, *args: Any) -> Any:
        return self.without(())(*args)

    def without(self, missing: Missing) -> Compiled:
        """The graph that takes no gradients for the results ``missing`` (positions among the
        tangents, rising)."""
        known = self._known.get(missing)
        if known is None:
            with self._lock:
                known = self._known.get(missing)
                if known is None:
                    gm = drop_tangents(self._gm, self._tangents, missing) if missing else self._gm
                    known = self._known[missing] = self._build(gm)
        return known
