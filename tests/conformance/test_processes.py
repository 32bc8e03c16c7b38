"""Processes that answer: they stay, are replaced when lost, and what is asked may grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import processes
from tests.conformance.processes import Answer, answers


def ask(function: Callable[[Any], Any], items: list[Any], patience: float = 60) -> list[Answer]:
    found = dict(answers(function, items, 1, "cpu", patience))
    return [found[item] for item in items]


def process_of(item: int) -> int:
    return os.getpid()


def test_one_process_answers_until_its_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ask(process_of, [1, 2])
    assert first.result == second.result != os.getpid()
    monkeypatch.setattr(processes, "is_lost", lambda device: True)
    first, second = ask(process_of, [1, 2])
    assert first.result != second.result


def test_a_silent_process_is_replaced() -> None:
    def answer(item: int) -> int:
        if item == 1:
            time.sleep(60)
        return item

    silent, after = ask(answer, [1, 2], patience=0.5)
    assert silent.result is None and silent.failure == "no answer after 0.5 s"
    assert after.result == 2


def test_answers_may_lead_to_more_items() -> None:
    items = [3]
    for item, answer in answers(lambda n: n - 1, items, 2, "cpu", 60):
        assert answer.result == item - 1
        items += [item - 1] if item else []
    assert items == [3, 2, 1, 0]


def test_an_error_is_told() -> None:
    def answer(item: int) -> float:
        return 1 / item

    wrong, right = ask(answer, [0, 1])
    assert wrong.result is None and "ZeroDivisionError: division by zero" in wrong.failure
    assert right.result == 1
