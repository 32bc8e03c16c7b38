"""Work in forked processes."""

from __future__ import annotations

import os

import pytest

from jitney.kernels.triton.fork_map import fork_map


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def test_children_do_all_the_work() -> None:
    done = fork_map(square, range(40), 2)
    assert [result for result, _ in done] == [n * n for n in range(40)]
    if len(os.sched_getaffinity(0)) > 1:
        assert os.getpid() not in {process for _, process in done}


def dies_elsewhere(process: int) -> int:
    if os.getpid() != process:
        os._exit(3)
    return process


def test_what_a_child_could_not_do_is_done_here() -> None:
    assert fork_map(dies_elsewhere, [os.getpid()] * 3, 2) == [os.getpid()] * 3


def fails(number: int) -> int:
    raise ValueError(number)


def test_errors_reach_the_caller() -> None:
    with pytest.raises(ValueError, match="1"):
        fork_map(fails, [1, 2, 3], 2)
