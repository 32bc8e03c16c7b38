"""Work in forked processes."""

from __future__ import annotations

import os
import time

import pytest

from jitney.kernels.triton.forked_workers import ForkedWorkers


def mapped(function, items, processes, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    workers = ForkedWorkers(function, processes)
    for item in items:
        workers.give(item)
    workers.end()
    return workers.results()


def square(number: int) -> tuple[int, int]:
    time.sleep(0.01)
    return number * number, os.getpid()


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_workers_share_the_work(processes, monkeypatch) -> None:
    done = mapped(square, range(40), processes, monkeypatch)
    assert [result for result, _ in done] == [n * n for n in range(40)]
    busy = {process for _, process in done}
    assert (os.getpid() in busy) == (processes == 1)
    assert len(busy) <= processes
    assert processes == 1 or len(busy) > 1


def test_no_items_and_no_worker_left(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    workers = ForkedWorkers(square, 4)
    workers.end()
    assert workers.results() == []
    with pytest.raises(ProcessLookupError):
        os.killpg(workers._first, 0)


def test_two_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    first, second = ForkedWorkers(square, 3), ForkedWorkers(square, 3)
    for number in (1, 2, 3):
        second.give(number + 2)
        first.give(number)
    first.end()
    second.end()
    assert [n for n, _ in first.results()] == [1, 4, 9]
    assert [n for n, _ in second.results()] == [9, 16, 25]


def test_a_worker_nobody_waits_for_ends() -> None:
    workers = ForkedWorkers(square, 2)
    if not hasattr(workers, "_first"):
        pytest.skip("one core")
    first = workers._first
    del workers
    assert os.waitpid(first, 0)[0] == first


def dies_elsewhere(process: int) -> int:
    if os.getpid() != process:
        os._exit(3)
    return process


def test_what_a_worker_could_not_do_is_done_here(monkeypatch) -> None:
    assert mapped(dies_elsewhere, [os.getpid()] * 3, 2, monkeypatch) == [os.getpid()] * 3


def fails(number: int) -> int:
    raise ValueError(number)


def test_errors_reach_the_caller(monkeypatch) -> None:
    with pytest.raises(ValueError, match="1"):
        mapped(fails, [1, 2, 3], 2, monkeypatch)
