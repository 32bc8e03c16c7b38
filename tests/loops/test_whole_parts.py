"""Sizes that guards keep at multiples of a number."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.loops.index import Axis, Dim, Index, index
from jitney.loops.ir import Assumption, Let, Load, Loop, LoopNest, Ref, Store
from jitney.loops.verify_order import where_iterations_meet
from jitney.loops.whole_parts import in_whole_parts, known_multiples
from tests.equal import assert_equal

ROWS, S = Axis("i", index(Dim("n"))), Dim("s", 0)
HALF, F32 = index(S) // 2, torch.float32


def kept(value: Index, at: int = 0) -> Assumption:
    return Assumption(value, at, at)


@pytest.mark.parametrize(
    "assumptions, multiples",
    [
        ((kept(index(S) % 2),), {S: 2}),
        ((kept(index(S) % 2), kept(index(S) % 3)), {S: 6}),
        ((kept(index(S) % HALF), kept(index(S) // HALF - 2)), {S: 2}),
        ((kept(index(S) % HALF), kept(index(S) // HALF, 2)), {S: 2}),
        ((kept(index(S) % HALF),), {}),
        ((kept(index(S) % HALF), kept(index(S) // HALF - 3)), {}),
        ((kept(index(S) % 2, 1),), {}),
        ((Assumption(index(S) % 2, 0, None),), {}),
        ((kept((index(S) + 1) % 2),), {}),
    ],
)
def test_a_multiple_is_what_guards_say(
    assumptions: tuple[Assumption, ...], multiples: dict[Dim, int]
) -> None:
    assert known_multiples(assumptions) == multiples


@pytest.mark.parametrize("ahead, meets", [(0, False), (1, True)])
def test_rows_of_two_halves_are_rows(ahead: int, meets: bool) -> None:
    column = Axis("j", index(S))
    read = Load("x", HALF * 2 * index(ROWS) + column + ahead, F32)
    write = Store("x", index(ROWS) * index(S) + column, Ref("v", F32))
    nest = LoopNest("n", (ROWS,), (Loop((column,), (Let("v", read), write)),))
    assert where_iterations_meet(nest)
    assert bool(where_iterations_meet(in_whole_parts(nest, {S: 2}))) == meets


@pytest.mark.parametrize("dynamic", [True, None])
def test_a_write_to_half_of_each_pair_is_compiled(dynamic: bool | None) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.view(x.shape[0], x.shape[1] // 2, 2, 1)[:, :, 0] += 1
        return x.sum(-1)

    compiled = jitney.compile(write, dynamic=dynamic, options={"eager_on_bug": False})
    for shape in ((3, 8), (4, 6), (5, 2), (2, 12)):
        mine = torch.arange(float(shape[0] * shape[1])).view(shape)
        eagers = mine.clone()
        assert_equal((compiled(mine), mine), (write(eagers), eagers))
