"""The threads of a program wait for each other between accesses that must keep their order."""

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.access_order import BARRIER
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.loops.index import Axis, Dim, index
from jitney.loops.ir import Expr, Let, Load, Loop, LoopNest, Op, Reduce, Reduction, Ref, Stmt, Store
from jitney.loops.target import Target

F32 = torch.float32
H200 = Target("cuda", "NVIDIA H200", multiprocessors=132, capability=(9, 0))
ROW, COLUMN, TERM = Axis("i", index(4)), Axis("j", index(64)), Axis("k", index(64))
HERE, THERE = index(ROW) * 64 + index(COLUMN), index(ROW) * 64 + index(TERM)


def barriers(*body: Stmt) -> int:
    nest = LoopNest("n", (ROW,), body)
    return emit_nest(nest, schedule_nest(nest, H200)).body.count(BARRIER)


def load(buffer: str, where: object = HERE) -> Load:
    return Load(buffer, where, F32)  # type: ignore[arg-type]


def doubled(value: Expr) -> Op:
    return Op("add", (value, value), F32)


def test_what_other_threads_stored_is_waited_for() -> None:
    stored = Loop((COLUMN,), (Store("b", HERE, doubled(load("a"))),))
    read = Reduce((TERM,), (), (Reduction(("s",), "sum", load("b", THERE), F32),))
    assert barriers(stored, read, Store("c", index(ROW), Ref("s", F32))) == 1


@pytest.mark.parametrize("rows,waits", [(1, 0), (2, 1)])
def test_a_reduction_of_what_its_own_body_stores_waits_for_it(rows: int, waits: int) -> None:
    """Unless each thread finds its own element in a register."""
    part = Axis("p", index(2))
    at = index(ROW) * 128 + index(COLUMN)
    stored: Stmt = Store("b", at, doubled(load("a")))
    if rows > 1:
        stored = Loop((part,), (Store("b", at + index(part) * 64, doubled(load("a"))),))
    again = Reduction(("s",), "sum", load("b", at), F32)
    summed = Reduce((COLUMN,), (stored,), (again,))
    assert barriers(summed, Store("c", index(ROW), Ref("s", F32))) == waits


def test_what_other_threads_are_to_read_is_waited_for() -> None:
    summed = Reduce((TERM,), (), (Reduction(("s",), "sum", load("a", THERE), F32),))
    assert barriers(summed, Loop((COLUMN,), (Store("a", HERE, Ref("s", F32)),))) == 1


def updated(width: int) -> Loop:
    """Rows of one column after another, in place."""
    column = Axis("j", index(width))
    at = index(ROW) * width + index(column)
    return Loop((column,), (Let("x", load("a", at)), Store("a", at, doubled(Ref("x", F32)))))


def test_a_swap_waits_an_update_in_place_does_not() -> None:
    assert barriers(updated(2048)) == 0
    swap = Let("x", load("a")), Let("y", load("b")), Store("a", HERE, Ref("y", F32))
    assert barriers(Loop((COLUMN,), (*swap, Store("b", HERE, Ref("x", F32))))) == 1


def test_an_update_in_place_waits_where_threads_share_an_element() -> None:
    """Those of a small tile read what one of them writes."""
    assert barriers(updated(8)) == 1
    summed = Reduction(("s",), "sum", load("a"), F32)
    cleared = Store("a", HERE, Op("sub", (load("a"), load("a")), F32))
    nest = Reduce((COLUMN,), (cleared,), (summed,)), Store("b", index(ROW), Ref("s", F32))
    assert barriers(*nest) == 1


def test_zeros_are_stored_before_anything_is_added() -> None:
    zero = Op("sub", (load("a"), load("a")), F32)
    cleared = Loop((COLUMN,), (Store("b", HERE, zero),))
    added = Loop((TERM,), (Store("b", THERE, load("a", THERE), mode="add"),))
    assert barriers(cleared, added) == 1
    assert barriers(added, added) == 0


@pytest.mark.parametrize("least,waits", [(1, 1), (0, 2)])
def test_threads_that_may_not_have_waited_wait_again(least: int, waits: int) -> None:
    """In a loop that may come round no time at all."""
    size = Dim("n", least)
    column = Axis("j", index(size))
    at = index(ROW) * size + index(column)
    first = Let("x", load("a", index(ROW)))
    inside = Loop((column,), (Let("y", load("b", at)), Store("b", at, doubled(Ref("y", F32)))))
    assert barriers(first, inside, Store("a", index(ROW) + 1, Ref("x", F32))) == waits
