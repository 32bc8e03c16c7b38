"""Nests that compute one buffer element by element: what fusion moves around most."""

from __future__ import annotations

from dataclasses import dataclass

from jitney.loops import ir


@dataclass(frozen=True)
class PointwiseNest:
    """A nest that does nothing but compute one buffer, element by element."""

    nest: ir.LoopNest
    lets: tuple[ir.Let, ...]
    store: ir.Store

    @property
    def exprs(self) -> tuple[ir.Expr, ...]:
        """All that it computes: the Lets' values, then the stored one."""
        return (*(let.value for let in self.lets), self.store.value)

    @property
    def is_copy(self) -> bool:
        """Whether it only rearranges the elements of one buffer."""
        value = self.store.value
        return not self.lets and isinstance(value, ir.Load) and value.mask is None


def pointwise(nest: ir.LoopNest) -> PointwiseNest | None:
    """The nest as a `PointwiseNest`, None if it is not one."""
    if not nest.body:
        return None
    *lets, store = nest.body
    if not isinstance(store, ir.Store) or store.mask is not None or store.mode != "set":
        return None
    only_lets = tuple(let for let in lets if isinstance(let, ir.Let))
    if len(only_lets) != len(lets):
        return None
    return PointwiseNest(nest, only_lets, store)
