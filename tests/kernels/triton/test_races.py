"""The check that every emitted kernel goes through finds what it should."""

import pytest

from tests.kernels.triton.races import races

WAIT = "tl.debug_barrier()"
STORED, ADDED = "tl.store(p0 + (t1), t2, mask=t3)", "tl.atomic_add(p0 + (t1), t2)"
SAME, OTHER = "t4 = tl.load(p0 + (t1), mask=t3)", "t4 = tl.load(p0 + (t1 + 8))"


@pytest.mark.parametrize("lines", [(STORED, OTHER), (STORED, SAME), (ADDED, OTHER), (OTHER, STORED),
                                   (OTHER, ADDED), (STORED, ADDED)])  # fmt: skip
def test_what_does_not_wait_is_found(lines: tuple[str, str]) -> None:
    first, second = lines
    assert races(f"    {first}\n    {second}") == [second]
    assert not races(f"    {first}\n    {WAIT}\n    {second}")


def test_a_loop_comes_round() -> None:
    assert races(f"    for i in range(0, 4):\n        {OTHER}\n        {STORED}")
    assert not races(f"    for i in range(0, 4):\n        {WAIT}\n        {OTHER}\n        {WAIT}\n"
                     f"        {STORED}")  # fmt: skip


def test_another_turn_updates_other_elements_in_place() -> None:
    moving = "t1 = i * 8 + tl.arange(0, 8)"
    turn = "\n        ".join(("for i in range(0, 4):", moving, SAME, WAIT, STORED))
    assert not races(f"    {turn}")
    assert races(f"    {turn.replace(moving, 't1 = tl.arange(0, 8)')}") == [SAME]
    assert races(f"    {turn.replace(SAME, OTHER)}") == [OTHER]


def test_an_update_in_place_and_sums_need_not_wait() -> None:
    assert not races(f"    {SAME}\n    {STORED}\n    {ADDED.replace('p0', 'p1')}")
    assert not races(f"    {ADDED}\n    {ADDED.replace('t1', 't9')}")


def test_a_counter_that_goes_up_by_one_need_not_wait() -> None:
    stored = "tl.store(tl.broadcast_to(p0 + (t1 + (0)), [128]), tl.broadcast_to(t4, [128]), mask=m)"
    assert not races(f"    t2 = tl.load(p0 + (t1 + (0)))\n    {stored}")
    assert races(f"    t2 = tl.load(p0 + (t1 + (8)))\n    {stored}") == [stored]
    assert races(f"    {stored}\n    t5 = tl.load(p0 + (t1 + (0)))")
