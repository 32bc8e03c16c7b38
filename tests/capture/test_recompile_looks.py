"""Saying why an entry does not hold runs nothing of the program and spends nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log
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


class Named:
    """Its text cannot be had before it has a name."""

    def __repr__(self) -> str:
        return f"<{self.name}>"  # type: ignore[attr-defined]


def test_the_text_of_an_object_is_not_asked_for() -> None:
    def chosen(x: torch.Tensor, owner: Any, others: list[Any]) -> Any:
        return x + 1 if owner is others[0] else x + 2

    compiled, x = jitney.compile(chosen, backend="eager"), torch.ones(2)
    for _ in range(3):
        owner, others = Named(), [Named()]
        assert_same(compiled(x, owner, others), x + 2)
        assert_same(compiled(x, others[0], others), x + 1)


asked: list[str] = []


class Said(Exception):
    def __str__(self) -> str:
        asked.append("str")
        return "said"


def test_the_text_of_an_exception_is_not_asked_for() -> None:
    def raises(x: torch.Tensor) -> None:
        raise Said(x)

    compiled = jitney.compile(raises, backend="eager")
    for _ in range(2):
        try:
            compiled(torch.ones(2))
        except Said:
            pass
    assert not asked


class Keys(dict[str, float]):
    def __len__(self) -> int:
        asked.append("len")
        return 7

    def __contains__(self, key: object) -> bool:
        asked.append("in")
        return False


class Numbers(list[float]):
    def __len__(self) -> int:
        asked.append("len")
        return 7


class Members(set[int]):
    def __len__(self) -> int:
        asked.append("len")
        return 7

    def __iter__(self) -> Any:
        asked.append("iter")
        return iter(())


def test_what_containers_override_is_not_asked_for() -> None:
    def summed(x: torch.Tensor, keys: Any, numbers: Any, members: Any) -> Any:
        x = x * dict.__len__(keys) + list.__len__(numbers) + set.__len__(members)
        return x + dict.get(keys, "a", 0) + list.__getitem__(numbers, 0)

    compiled, x = jitney.compile(summed, backend="eager"), torch.ones(2)
    keys, numbers, members = Keys(a=2.0), Numbers([1.0, 2.0]), Members({1, 2, 3})
    for _ in range(3):
        for _ in range(2):
            assert_same(compiled(x, keys, numbers, members), summed(x, keys, numbers, members))
        dict.__setitem__(keys, str(dict.__len__(keys)), 1.0)
        list.append(numbers, 1.0)
        set.add(members, set.__len__(members) + 1)
    assert not asked


def test_a_limit_of_none_says_that_nothing_is_compiled() -> None:
    compiled = jitney.compile(lambda x: x + 1, recompile_limit=0)
    with pytest.warns(UserWarning, match="is not compiled, since recompile_limit is 0"):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_what_has_no_name_is_told_by_its_line() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum().item() * (y + 1)

    compiled = jitney.compile(scaled, backend="eager")
    log.clear()
    for n in range(3):
        compiled(torch.full((2,), 1.5 * n), torch.ones(2))
    line = f"{Path(__file__).name}:{scaled.__code__.co_firstlineno + 1}"
    (recompile,) = log.events("recompile")
    message = f"an intermediate value of {line}: equals 0.0 expected, got 3.0"
    assert recompile.data["message"] == message
