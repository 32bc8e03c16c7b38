"""Which loads of a producer would be gathered, element by element, where a reader computes it."""

from __future__ import annotations

from jitney.loops import ir, visit
from jitney.loops.index import Axis, Index
from jitney.loops.invert_index import invert_index
from jitney.loops.pointwise_nest import PointwiseNest

_ZERO, _ONE = Index(), Index((), 1)


def gathered_loads(reader: ir.Node, simple: PointwiseNest) -> int:
    """Loads of the producer that run along memory neither by whole vectors nor at one place where
    the reader, taking a stored value, would read a vector: the most of any of its loads."""
    if not isinstance(reader, ir.LoopNest):
        return 0
    axes = [a for a in (*reader.axes, *visit.inner_axes(reader.body)) if a.extent.hint() > 1]
    wanted = {e.index for e in visit.loads(reader.body) if e.buffer == simple.store.buffer}
    return max((_gathered(simple, at, axes) for at in wanted), default=0)


def _gathered(simple: PointwiseNest, wanted: Index, axes: list[Axis]) -> int:
    along = next((a for a in axes if wanted.coefficient(a) == _ONE), None)
    at = invert_index(simple.store.index, simple.nest.axes, wanted)
    if along is None or at is None:
        return 0
    moved = {e.index.substitute(dict(at)) for e in visit.loads(simple.nest.body)}
    steps = [position.coefficient(along) for position in moved]
    return sum(step not in (None, _ZERO, _ONE) for step in steps)
