"""Running states of reductions: their identities, steps, merges, and sums over lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from jitney.errors import CompilerBug
from jitney.kernels.llvm.conversions import HALVES, broadcast, cast, lane, shuffle
from jitney.kernels.llvm.operations import compare, emit_op, i_and, i_or, is_nan, number, select
from jitney.kernels.llvm.ssa import Ssa, constant
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.ir import POSITIONAL, Reduction

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
            "xor": "xor"}  # fmt: skip
_NOWHERE = (1 << 63) - 1


class Accumulators:
    """The states of all results of one `Reduce` (welford is a GPU's alone).

    A state is a flat list of values: one per result, two (extreme, position) for argmax.
    ``in_order``: a lane meets its elements in the order of their positions.
    """

    def __init__(self, text: FunctionText, results: Sequence[Reduction], in_order: bool) -> None:
        self._text, self._results, self._in_order = text, tuple(results), in_order

    @property
    def wants_position(self) -> bool:
        """Whether a step needs the element's position."""
        return any(r.op in POSITIONAL for r in self._results)

    @property
    def adds_floats(self) -> bool:
        """Whether a result is a sum of rounded terms."""
        return any(r.op == "sum" and r.dtype.is_floating_point for r in self._results)

    def identity(self, lanes: int) -> list[Ssa]:
        """The state before the first element."""
        state = []
        for r in self._results:
            dtype = _state_dtype(r)
            state.append(constant(_identity(r.op, dtype), dtype, lanes))
            if r.op in POSITIONAL:
                state.append(constant(_NOWHERE, torch.int64, lanes))
        return state

    def step(
        self, state: Sequence[Ssa], values: Sequence[Ssa], position: Ssa | None, mask: Ssa | None
    ) -> list[Ssa]:
        """The state after one more element per lane; lanes off in ``mask`` keep theirs."""
        text, after, k = self._text, [], 0
        for r, value in zip(self._results, values, strict=True):
            old = state[k]
            value = broadcast(text, cast(text, value, old.dtype), old.lanes)
            if r.op in POSITIONAL:
                assert position is not None
                where = broadcast(text, position, old.lanes)
                new = self._extreme(r.op, (old, state[k + 1]), (value, where), self._in_order)
            else:
                new = [emit_op(text, _COMBINE[r.op], [old, value], old.dtype)]
            for n, o in zip(new, state[k : k + len(new)], strict=True):
                after.append(n if mask is None else select(text, mask, n, o))
            k += len(new)
        return after

    def merge(self, a: Sequence[Ssa], b: Sequence[Ssa]) -> list[Ssa]:
        """Two states of disjoint elements as one."""
        text, after, k = self._text, [], 0
        for r in self._results:
            if r.op in POSITIONAL:
                pair = (a[k], a[k + 1]), (b[k], b[k + 1])
                after.extend(self._extreme(r.op, *pair, ordered=False))
                k += 2
            else:
                after.append(emit_op(text, _COMBINE[r.op], [a[k], b[k]], a[k].dtype))
                k += 1
        return after

    def over_lanes(self, state: Sequence[Ssa]) -> list[Ssa]:
        """Reduces a vector state to a scalar one, by halves."""
        width = state[0].lanes
        current = list(state)
        while width > 1:
            half = width // 2
            low = [shuffle(self._text, v, None, list(range(half))) for v in current]
            high = [shuffle(self._text, v, None, list(range(half, width))) for v in current]
            current, width = self.merge(low, high), half
        return [lane(self._text, v, 0) for v in current]

    def finish(self, state: Sequence[Ssa]) -> dict[str, Ssa]:
        """The results by name."""
        values: dict[str, Ssa] = {}
        k = 0
        for r in self._results:
            if r.op in POSITIONAL:
                where = state[k + 1]
                none = compare(self._text, "icmp eq", where, number(where, _NOWHERE))
                values[r.names[0]] = select(self._text, none, number(where, 0), where)
                k += 2
            else:
                values[r.names[0]] = cast(self._text, state[k], r.dtype)
                k += 1
        return values

    def _extreme(self, op: str, a: tuple[Ssa, Ssa], b: tuple[Ssa, Ssa], ordered: bool) -> list[Ssa]:
        """The better (value, position); a NaN wins, then the first. ``ordered``: b comes later."""
        text, floating = self._text, a[0].dtype.is_floating_point
        better = "gt" if POSITIONAL[op] == "max" else "lt"
        take = emit_op(text, better, [b[0], a[0]], torch.bool)
        if not ordered:
            same = emit_op(text, "eq", [b[0], a[0]], torch.bool)
            sooner = compare(text, "icmp slt", b[1], a[1])
            take = i_or(text, [take, i_and(text, [same, sooner])])
        if floating:
            take = self._nan_wins(take, a, b, ordered)
        return [select(text, take, b[0], a[0]), select(text, take, b[1], a[1])]

    def _nan_wins(self, take: Ssa, a: tuple[Ssa, Ssa], b: tuple[Ssa, Ssa], ordered: bool) -> Ssa:
        text = self._text
        a_nan, b_nan = is_nan(text, a[0]), is_nan(text, b[0])
        true = constant(True, torch.bool, a_nan.lanes)
        a_number = emit_op(text, "xor", [a_nan, true], torch.bool)
        if not ordered:
            sooner = compare(text, "icmp slt", b[1], a[1])
            a_number = i_or(text, [a_number, sooner])
        return i_or(text, [take, i_and(text, [b_nan, a_number])])


def _state_dtype(r: Reduction) -> torch.dtype:
    dtype = r.value.dtype if r.op in POSITIONAL else r.dtype
    return torch.float32 if dtype in HALVES else dtype


def _identity(op: str, dtype: torch.dtype) -> bool | int | float:
    if op in ("sum", "xor", "any"):
        return False if dtype == torch.bool else 0
    if op in ("prod", "all"):
        return True if dtype == torch.bool else 1
    extreme = POSITIONAL.get(op, op)
    if extreme not in ("max", "min"):
        raise CompilerBug(f"{op} is not a reduction")
    highest = extreme == "min"
    if dtype.is_floating_point:
        return math.inf if highest else -math.inf
    if dtype == torch.bool:
        return highest
    return torch.iinfo(dtype).max if highest else torch.iinfo(dtype).min
