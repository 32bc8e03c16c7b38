"""Indices of one symbol: what bounds alone do not show, cases do; what is not so is not shown."""

from __future__ import annotations

import pytest

from jitney.loops.index import Axis, Dim, Index, index
from jitney.loops.ir import Assumption
from jitney.loops.reach_by_cases import stays_inside

S = Dim("s", 1, None)
NARROW = Dim("s", 1, 6)
COLUMNS = index(8) // S + 1
PLACES = Axis("i", COLUMNS * 10)
UP_TO = Axis("i", index(S))
QUARTERS = Axis("i", (index(S) - 4) // 3 * 4 + 4)
IS_ONE = Assumption(index(4) // S, 1, 1)
STEPPED = index(PLACES) % COLUMNS * S + index(PLACES) // COLUMNS * 10 + 1


@pytest.mark.parametrize(
    ("where", "axes", "size", "assumptions", "stays"),
    [
        (STEPPED, (PLACES,), 100, (), True),
        (STEPPED, (PLACES,), 99, (), False),
        (index(UP_TO), (UP_TO,), 4, (IS_ONE,), True),
        (index(UP_TO), (UP_TO,), 3, (IS_ONE,), False),
        (index(UP_TO), (UP_TO,), 4, (), False),
        (index(UP_TO) - 1, (UP_TO,), 4, (IS_ONE,), False),
        (index(QUARTERS), (QUARTERS,), 4, (Assumption((index(S) - 4) // 3 + 1, 1, 1),), True),
        (index(QUARTERS), (QUARTERS,), 4, (Assumption((index(S) - 4) // 3, None, 1),), False),
        (index(UP_TO), (UP_TO,), 9, (Assumption(index(S), None, 9),), True),
        (index(UP_TO), (UP_TO,), 8, (Assumption(index(S), 2, 9),), False),
        (index(UP_TO), (UP_TO,), 9, (Assumption(index(Dim("z", 1, None)), None, 9),), False),
        (index(UP_TO) + Dim("z", 1, 2), (UP_TO,), 11, (Assumption(index(S), None, 9),), False),
    ],
)  # fmt: skip
def test_what_cases_show(
    where: Index,
    axes: tuple[Axis, ...],
    size: int,
    assumptions: tuple[Assumption, ...],
    stays: bool,
) -> None:
    assert stays_inside(where, axes, size, assumptions) == stays


def test_a_loop_that_does_not_run_touches_nothing() -> None:
    never = Axis("j", index(3) // NARROW)
    where = index(never) * NARROW
    assert stays_inside(where, (never,), 5, ())
    assert not stays_inside(where, (never,), 2, ())
