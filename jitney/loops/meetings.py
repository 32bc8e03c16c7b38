"""Iterations of one loop that meet in memory, found while a nest is interpreted.

A kernel may run the points of a nest in any order and those of a loop several at a time; the
interpreter runs each statement for all of them at once. Both give the same values when what one
iteration writes no other iteration of the same loop touches. This looks at the elements that were
really touched, so that it also sees indices read from memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from jitney.errors import CompilerBug

Tensor = torch.Tensor


@dataclass(frozen=True)
class Touch:
    """Elements of ``buffer`` met by one statement: a position for every point of ``sizes``, fewer
    where ``mask`` leaves some out. ``mode`` is "load" or a store's. ``loops``: the loops around it,
    outermost first, each with how many of ``sizes`` belong to it and those outside it.
    """

    buffer: str
    mode: str
    loops: tuple[tuple[object, int], ...]
    sizes: tuple[int, ...]
    positions: Tensor
    mask: Tensor | None = None
    values: Tensor | None = None

    def chosen(self, by_point: Tensor) -> Tensor:
        """The points that count, in a row."""
        flat = by_point.expand(self.sizes).reshape(-1)
        return flat if self.mask is None else flat[self.mask.expand(self.sizes).reshape(-1)]

    def iterations(self, shared: int) -> Tensor:
        """The number of each point's iteration of the loops that own the first ``shared`` sizes."""
        outer = self.sizes[:shared]
        numbers = torch.arange(math.prod(outer)).reshape(*outer, *(1,) * (len(self.sizes) - shared))
        return self.chosen(numbers)


@dataclass
class Meetings:
    """What one node has touched so far."""

    stores: list[Touch] = field(default_factory=list)
    loads: list[Touch] = field(default_factory=list)

    def check(self) -> None:
        """Raises CompilerBug where an iteration touches what another one of its loop writes."""
        for at, store in enumerate(self.stores):
            _check_alone(store)
            for other in (*self.loads, *self.stores[at + 1 :]):
                if other.buffer == store.buffer and (
                    store.mode == "set" or store.mode != other.mode
                ):
                    _check_pair(store, other)


def _check_alone(store: Touch) -> None:
    """No two points of a store write different values to one element, unless it combines them."""
    if store.mode != "set" or store.values is None:
        return
    positions, values = store.chosen(store.positions), store.chosen(store.values)
    if not positions.numel():
        return
    kept = torch.empty(int(positions.max()) + 1, dtype=values.dtype)
    kept[positions] = values
    same = (kept[positions] == values) | (values != values)
    if not bool(same.all()):
        raise CompilerBug(f"iterations of one loop write different values to {store.buffer}")


def _check_pair(store: Touch, other: Touch) -> None:
    """Points of both that meet belong to one iteration of the loops around both."""
    pairs = zip(store.loops, other.loops, strict=False)
    shared = max((size for (a, size), (b, _) in pairs if a is b), default=0)
    written, met = store.chosen(store.positions), other.chosen(other.positions)
    if not shared or not written.numel() or not met.numel():
        return
    by, here = store.iterations(shared), other.iterations(shared)
    size = int(torch.maximum(written.max(), met.max())) + 1
    first = torch.full((size,), -1).index_reduce_(0, written, by, "amin", include_self=False)
    last = torch.full((size,), -1).index_reduce_(0, written, by, "amax", include_self=False)
    bad = (first[met] >= 0) & ((first[met] != here) | (last[met] != here))
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise CompilerBug(
            f"iteration {int(here[at])} touches {other.buffer}[{int(met[at])}], which iteration "
            f"{int(first[met[at]])} of the same loop writes"
        )
