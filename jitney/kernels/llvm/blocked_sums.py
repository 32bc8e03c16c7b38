"""Loops that carry running states, those of sums in blocks.

Numbers added one after the other are rounded as often as there are numbers. So a loop that adds
many starts afresh every so many steps and adds up the sums of its blocks, and of blocks of blocks:
the cascade of ATen's sums. A block costs one more addition to each state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from jitney.kernels.llvm.accumulators import Accumulators
from jitney.kernels.llvm.ssa import Ssa
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Axis

State = list[Ssa]

#: Terms that are added one after the other at most, and sums of blocks.
TERMS, BLOCKS = 32, 16
#: Steps of a loop of unknown length, for the choice of blocks.
_UNKNOWN = 1 << 12


@dataclass(frozen=True)
class BlockedSums:
    """``sizes``: for an axis, the steps of its blocks, the largest blocks first; what is not there
    runs as one loop. ``accumulators`` know how the states of two blocks are added up."""

    accumulators: Accumulators | None = None
    sizes: Mapping[Axis, tuple[int, ...]] = field(default_factory=dict)


PLAIN = BlockedSums()


def block_sums(accumulators: Accumulators, loops: Sequence[tuple[Axis, int]]) -> BlockedSums:
    """The blocks of a reduction's ``loops``: axes, outermost first, and the elements of one step
    (for each state)."""
    if not accumulators.adds_floats:
        return PLAIN
    steps = [-(-a.extent.const // n) if a.extent.is_const else _UNKNOWN for a, n in loops]
    sizes = zip((axis for axis, _ in loops), block_sizes(steps), strict=True)
    return BlockedSums(accumulators, dict(sizes))


def block_sizes(steps: Sequence[int]) -> list[tuple[int, ...]]:
    """For nested loops, outermost first: the steps of each one's blocks, the largest first.

    No state adds more than `TERMS` terms, or `BLOCKS` sums of blocks, in one go. A block of one
    step is what the loops inside it add up.
    """
    found: list[tuple[int, ...]] = []
    added, most = 1, TERMS
    for count in reversed(steps):
        sizes: list[int] = []
        size = 1
        while added * -(-count // size) > most:
            size *= most // added
            sizes.insert(0, size)
            added, most = 1, BLOCKS
        added *= -(-count // size)
        found.insert(0, tuple(sizes))
    return found


@dataclass(frozen=True)
class Steps:
    """``begin``, ``begin + step``, … before ``end``; ``nonempty``: certainly one of them."""

    begin: str
    end: str
    step: int = 1
    nonempty: bool = False


def carry(
    text: FunctionText,
    axis: Axis,
    steps: Steps,
    states: list[State],
    body: Callable[[str, list[State]], list[State]],
    sums: BlockedSums = PLAIN,
) -> list[State]:
    """The states after ``body``, given an index and states, has run for all steps of ``axis``."""
    return _carry(text, steps, states, body, sums.accumulators, sums.sizes.get(axis, ()))


def _carry(
    text: FunctionText,
    steps: Steps,
    states: list[State],
    body: Callable[[str, list[State]], list[State]],
    accumulators: Accumulators | None,
    sizes: tuple[int, ...],
) -> list[State]:
    stride = steps.step * sizes[0] if sizes else steps.step
    with text.loop(steps.begin, steps.end, stride, flat(states), steps.nonempty) as loop:
        before = shaped(loop.carried, states)
        if not sizes:
            after = body(loop.index, before)
        else:
            assert accumulators is not None
            fresh = [accumulators.identity(state[0].lanes) for state in states]
            if sizes[0] == 1:
                block = body(loop.index, fresh)
            else:
                past = text.pure(f"add nsw i64 {loop.index}, {stride}")
                end = text.smaller(past, steps.end)
                inside = Steps(loop.index, end, steps.step, nonempty=True)
                block = _carry(text, inside, fresh, body, accumulators, sizes[1:])
            after = [accumulators.merge(a, b) for a, b in zip(before, block, strict=True)]
        loop.next = tuple(flat(after))
    return shaped(loop.results, states)


def flat(states: Sequence[State]) -> State:
    """All values of all states."""
    return list(chain.from_iterable(states))


def shaped(values: Sequence[Ssa], like: Sequence[State]) -> list[State]:
    """Flat values regrouped as ``like``."""
    source = iter(values)
    return [[next(source) for _ in state] for state in like]
