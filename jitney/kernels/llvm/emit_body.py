"""Emits a block of statements: loops, reductions with vector accumulators, tails.

Statements run for several *copies* at once (unrolled vectors): a copy is a `Scope`. A copy without
lanes is a row, inside which reductions and loops pick a vector axis of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitney.kernels.llvm.accumulators import Accumulators
from jitney.kernels.llvm.blocked_sums import PLAIN, BlockedSums, State, Steps, block_sums, carry
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.text import FunctionText
from jitney.kernels.llvm.vector_loop import Leaf, Span, VectorLoop
from jitney.loops.index import Axis, Index
from jitney.loops.ir import Let, Loop, Reduce, Stmt, Store
from jitney.loops.points import place_among


@dataclass(frozen=True)
class InnerPlan:
    """How a `Reduce` or `Loop` runs: ``serial`` loops, then ``vector`` over ``lanes`` with
    ``unroll`` vectors an iteration (no vector axis: everything is serial)."""

    serial: tuple[Axis, ...]
    vector: Axis | None = None
    lanes: int = 0
    unroll: int = 1


class BodyEmitter:
    """Writes statements into ``text``.

    ``plans``: how each `Reduce` and `Loop` that meets a row runs, by ``id``. ``limits``: axes that
    end early, at an index of outer axes (the last chunk of a split reduction).
    """

    def __init__(
        self, text: FunctionText, plans: Mapping[int, InnerPlan], limits: Mapping[Axis, Index]
    ) -> None:
        self._text, self._plans, self._limits = text, plans, limits

    def block(self, scopes: list[Scope], body: Sequence[Stmt]) -> None:
        """Runs ``body`` for every copy."""
        for stmt in body:
            if isinstance(stmt, Let | Store):
                for scope in scopes:
                    scope.run((stmt,))
            elif isinstance(stmt, Reduce):
                self._reduce(scopes, stmt)
            else:
                self._loop(scopes, stmt)

    # ---------------------------------------------------------------- statements

    def _plan(self, scopes: list[Scope], stmt: Reduce | Loop) -> InnerPlan:
        if scopes[0].lanes is not None or id(stmt) not in self._plans:
            return InnerPlan(stmt.axes)
        return self._plans[id(stmt)]

    def _loop(self, scopes: list[Scope], stmt: Loop) -> None:
        def leaf(copies: list[Scope], _: list[State]) -> list[State]:
            self.block(copies, stmt.body)
            return [[] for _ in copies]

        plan = self._plan(scopes, stmt)
        self._nest(plan.serial, scopes, [], self._inside(plan, leaf))

    def _reduce(self, scopes: list[Scope], stmt: Reduce) -> None:
        plan = self._plan(scopes, stmt)
        in_order = plan.vector in (None, *stmt.axes[-1:])
        accumulators = Accumulators(self._text, stmt.results, in_order)
        position = place_among(stmt.axes) if accumulators.wants_position else None

        def leaf(copies: list[Scope], states: list[State]) -> list[State]:
            self.block(copies, stmt.body)
            after = []
            for scope, state in zip(copies, states, strict=True):
                values = [scope.emit(r.value) for r in stmt.results]
                where = None if position is None else scope.indices.value(position)
                after.append(
                    accumulators.step(state, values, where, scope.mask if plan.vector else None)
                )
            return after

        lanes = plan.lanes if plan.vector else scopes[0].width
        copies = len(scopes) * (plan.unroll if plan.vector else 1)
        states = [accumulators.identity(lanes) for _ in range(copies)]
        if plan.vector and not self._text.isa.masks:
            states += [accumulators.identity(0) for _ in scopes]
        loops = [(axis, 1) for axis in plan.serial]
        if plan.vector is not None:
            loops.append((plan.vector, plan.lanes * plan.unroll))
        sums = block_sums(accumulators, loops)
        states = self._nest(plan.serial, scopes, states, self._inside(plan, leaf, sums), sums)
        for k, scope in enumerate(scopes):
            state = self._merged(accumulators, plan, states, k, len(scopes))
            for name, value in accumulators.finish(state).items():
                scope.bind(name, value)

    def _merged(
        self, accumulators: Accumulators, plan: InnerPlan, states: list[State], k: int, rows: int
    ) -> State:
        """The final state of row ``k``: its copies pairwise, then lanes, then the scalar tail."""
        if plan.vector is None:
            return states[k]
        copies = [states[u * rows + k] for u in range(plan.unroll)]
        while len(copies) > 1:
            pairs = [
                accumulators.merge(a, b) for a, b in zip(copies[::2], copies[1::2], strict=False)
            ]
            copies = pairs + ([copies[-1]] if len(copies) % 2 else [])
        state = accumulators.over_lanes(copies[0])
        tail = states[plan.unroll * rows :]
        return accumulators.merge(state, tail[k]) if tail else state

    def _inside(self, plan: InnerPlan, leaf: Leaf, sums: BlockedSums = PLAIN) -> Leaf:
        """What runs at the innermost serial level: the leaf itself, or a vector loop round it."""
        axis = plan.vector
        if axis is None:
            return leaf

        def run(scopes: list[Scope], current: list[State]) -> list[State]:
            span = Span("0", self.end(scopes[0], axis), self._known(axis))
            loop = VectorLoop(scopes, axis, span, plan.lanes, plan.unroll, leaf, sums)
            return loop.emit(current)

        return run

    # ---------------------------------------------------------------- loops

    def end(self, scope: Scope, axis: Axis) -> str:
        """Where the axis stops, as an i64."""
        end = scope.indices.uniform(axis.extent)
        limit = self._limits.get(axis)
        if limit is None:
            return end
        return self._text.smaller(end, scope.indices.uniform(limit))

    def _known(self, axis: Axis) -> int | None:
        return axis.extent.const if axis.extent.is_const and axis not in self._limits else None

    def _runs(self, axis: Axis) -> bool:
        """Whether the axis certainly has a point (a limit leaves at least one)."""
        low, _ = axis.extent.bounds()
        return low is not None and low > 0

    def nest(self, axes: Sequence[Axis], scopes: list[Scope], leaf: Leaf) -> None:
        """Serial loops over ``axes``, outermost first, round ``leaf``."""
        self._nest(axes, scopes, [], leaf)

    def _nest(
        self,
        axes: Sequence[Axis],
        scopes: list[Scope],
        states: list[State],
        leaf: Leaf,
        sums: BlockedSums = PLAIN,
    ) -> list[State]:
        if not axes:
            return leaf(scopes, states)
        axis, *rest = axes

        def point(index: str, current: list[State]) -> list[State]:
            inner = [s.inner({axis: index}) for s in scopes]
            return self._nest(rest, inner, current, leaf, sums)

        if self._known(axis) == 1:
            return point("0", states)
        steps = Steps("0", self.end(scopes[0], axis), nonempty=self._runs(axis))
        return carry(self._text, axis, steps, states, point, sums)
