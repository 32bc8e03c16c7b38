"""A loop over vectors of an axis; what is left of it runs by masks, narrower vectors or elements.

It runs for several *rows* at once (scopes), and by several vectors an iteration: each vector of a
row is a copy, a scope with lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from jitney.kernels.llvm.blocked_sums import PLAIN, BlockedSums, State, Steps, carry
from jitney.kernels.llvm.conversions import broadcast
from jitney.kernels.llvm.expressions import Lanes, Scope
from jitney.kernels.llvm.operations import compare
from jitney.kernels.llvm.ssa import Ssa, iota
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Axis

#: What runs at one place of all loops: for copies and their states, the states afterwards.
Leaf = Callable[[list[Scope], list[State]], list[State]]


@dataclass(frozen=True)
class Span:
    """``begin <= i < end`` as SSA values; ``count`` when the length is known; ``aligned`` if
    vectors from ``begin`` on start at multiples of their lanes."""

    begin: str
    end: str
    count: int | None = None
    aligned: bool = True


@dataclass(frozen=True)
class VectorLoop:
    """``leaf`` for the elements of ``axis`` in ``span``, for every row: ``unroll`` vectors of
    ``lanes`` elements an iteration. ``sums``: the blocks in which the iterations add up."""

    rows: list[Scope]
    axis: Axis
    span: Span
    lanes: int
    unroll: int
    leaf: Leaf
    sums: BlockedSums = PLAIN

    def emit(self, states: Sequence[State] = ()) -> list[State]:
        """Writes the loop; returns the states after it.

        There is a state for each vector of an iteration and row; where no instruction takes a
        mask, those of the elements of an incomplete vector follow, one a row.
        """
        count, step, masks = self.span.count, self.lanes * self.unroll, self._text.isa.masks
        in_vectors = len(self.rows) * self.unroll
        in_elements = 0 if masks else len(self.rows)
        states = states or [[] for _ in range(in_vectors + in_elements)]
        vectors, elements = [*states[:in_vectors]], [*states[in_vectors:]]
        done = self._after_whole(step)
        if count is None or count >= step:
            vectors = self._iterations(done, vectors)
        if count is not None and count % step == 0:
            return [*vectors, *elements]
        if masks:
            return self._masked_vectors(done, vectors)
        if self.unroll > 1 and (count is None or count % step >= self.lanes):
            vectors = self._single_vectors(done, vectors)
            done = self._after_whole(self.lanes)
        if count is None or (count % self.lanes and any(states)):
            elements = self._elements(done, elements)
        else:
            self._narrower_vectors(done, count % self.lanes)
        return [*vectors, *elements]

    # ---------------------------------------------------------------- parts of the span

    def _iterations(self, end: str, states: list[State]) -> list[State]:
        """``unroll`` vectors at a time, from the beginning."""

        def part(index: str, current: list[State]) -> list[State]:
            starts = [self._plus(index, u * self.lanes) for u in range(self.unroll)]
            copies = [self._vector(row, start, self.lanes) for start in starts for row in self.rows]
            return self.leaf(copies, current)

        steps = Steps(
            self.span.begin, end, self.lanes * self.unroll, nonempty=bool(self.span.count)
        )
        return carry(self._text, self.axis, steps, states, part, self.sums)

    def _single_vectors(self, begin: str, states: list[State]) -> list[State]:
        """Whole vectors after the last iteration."""

        def part(index: str, current: list[State]) -> list[State]:
            return self.leaf([self._vector(row, index, self.lanes) for row in self.rows], current)

        return self._on_first(begin, self._after_whole(self.lanes), states, part)

    def _masked_vectors(self, begin: str, states: list[State]) -> list[State]:
        """Vectors after the last iteration, the last of them with a mask."""
        count = self.span.count
        exact = count is not None and count % (self.lanes * self.unroll) % self.lanes == 0

        def part(index: str, current: list[State]) -> list[State]:
            mask = None if exact else self._mask(index)
            copies = [self._vector(row, index, self.lanes, mask) for row in self.rows]
            return self.leaf(copies, current)

        return self._on_first(begin, self.span.end, states, part)

    def _on_first(
        self,
        begin: str,
        end: str,
        states: list[State],
        part: Callable[[str, list[State]], list[State]],
    ) -> list[State]:
        """Single vectors go on with the state of each row's first vector."""
        rows = len(self.rows)
        steps = Steps(begin, end, self.lanes, nonempty=self.span.count is not None)
        return [*carry(self._text, self.axis, steps, states[:rows], part), *states[rows:]]

    def _narrower_vectors(self, begin: str, rest: int) -> None:
        """The ``rest`` last elements, which reduce nothing: half a vector, a quarter, …, at last
        a single element."""
        lanes = self.lanes
        while rest:
            lanes //= 2
            if rest < lanes:
                continue
            if lanes > 1:
                self.leaf([self._vector(row, begin, lanes) for row in self.rows], [])
            else:
                self.leaf([row.inner({self.axis: begin}) for row in self.rows], [])
            begin, rest = self._plus(begin, lanes), rest - lanes

    def _elements(self, begin: str, states: list[State]) -> list[State]:
        """The last elements one by one."""

        def part(index: str, current: list[State]) -> list[State]:
            return self.leaf([row.inner({self.axis: index}) for row in self.rows], current)

        return carry(self._text, self.axis, Steps(begin, self.span.end), states, part)

    # ---------------------------------------------------------------- places and copies

    @property
    def _text(self) -> FunctionText:
        return self.rows[0].text

    def _after_whole(self, step: int) -> str:
        """Where the whole steps of the span end."""
        begin, end, count = self.span.begin, self.span.end, self.span.count
        if count is not None:
            return self._plus(begin, count // step * step)
        length = self._text.pure(f"sub nsw i64 {end}, {begin}")
        rest = self._text.pure(f"srem i64 {length}, {step}")
        return self._text.pure(f"sub nsw i64 {end}, {rest}")

    def _plus(self, base: str, offset: int) -> str:
        if offset == 0:
            return base
        if not base.startswith("%"):
            return str(int(base) + offset)
        return self._text.pure(f"add nsw i64 {base}, {offset}")

    def _vector(self, row: Scope, begin: str, lanes: int, mask: Ssa | None = None) -> Scope:
        return row.inner({self.axis: begin}, Lanes(self.axis, lanes, self.span.aligned), mask)

    def _mask(self, begin: str) -> Ssa:
        """The lanes before the end of the span."""
        left = self._text.pure(f"sub nsw i64 {self.span.end}, {begin}")
        count = self._text.pure(f"trunc i64 {left} to i32")
        # A full vector before the last one: more is left than 32 bits may hold a count of lanes.
        many = self._text.pure(f"icmp sgt i64 {left}, {self.lanes}")
        capped = self._text.pure(f"select i1 {many}, i32 {self.lanes}, i32 {count}")
        return first_lanes(self._text, capped, self.lanes)


def first_lanes(text: FunctionText, count: str, lanes: int) -> Ssa:
    """A mask of the first ``count`` (an i32) of ``lanes``."""
    limit = broadcast(text, Ssa(count, torch.int32), lanes)
    return compare(text, "icmp slt", iota(lanes, torch.int32), limit)
