"""Saying why an entry does not hold runs nothing of the program and spends nothing of it."""

from __future__ import annotations

from typing import Any

import torch

import jitney
from tests.capture.run_capture import assert_same


def test_an_iterator_in_place_of_a_list_is_not_spent() -> None:
    def summed(x: torch.Tensor, data: Any) -> Any:
        total = 0.0
        for value in data:
            total += value
        return x + total

    compiled, x = jitney.compile(summed, backend="eager"), torch.ones(2)
    for make in (list, iter, lambda values: (v for v in values), tuple, set):
        for values in ([1.0, 2.0], [1.0, 3.0]):
            assert_same(compiled(x, make(values)), summed(x, make(values)))


class Slots:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Counted:
    """What its attribute is, it counts."""

    asked = 0

    @property
    def rate(self) -> float:
        self.asked += 1
        return 3.0


def test_an_attribute_of_another_object_is_not_asked_for() -> None:
    def scaled(x: torch.Tensor, owner: Any) -> Any:
        return x * owner.rate

    compiled, x = jitney.compile(scaled, backend="eager"), torch.ones(2)
    compiled(x, Slots(2.0))
    counted = Counted()
    for calls in (1, 2, 3):
        assert_same(compiled(x, counted), x * 3)
        assert counted.asked == calls
