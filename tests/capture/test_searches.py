"""Searches in lists whose items are compared by their own methods."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import X, assert_same


@dataclasses.dataclass
class Item:
    n: int


class Odd:
    """Equal to any number of its kind, and changes the list it is in."""

    def __init__(self, home: list[Any]) -> None:
        self.home = home

    def __eq__(self, other: object) -> bool:
        self.home.append(other)
        return False

    __hash__ = object.__hash__


@pytest.mark.parametrize("kind", [list, tuple, collections.deque])
@pytest.mark.parametrize("name", ["count", "index", "remove"])
def test_items_are_found_as_they_are_in_the_call(kind: Any, name: str) -> None:
    if not hasattr(kind, name):
        return

    def f(x: torch.Tensor, items: Any, wanted: Item) -> Any:
        found = getattr(items, name)(wanted)
        return x * len(items), found, list(items), wanted in items, Item(7) in items

    compiled = jitney.compile(f, backend="eager")
    for wanted, third in ((1, 3), (2, 3), (2, 2), (1, 1), (1, 3)):
        pair = [kind([Item(1), Item(2), Item(third)]) for _ in range(2)]
        got, want = compiled(X, pair[0], Item(wanted)), f(X, pair[1], Item(wanted))
        assert_same(got, want)
        assert pair[0] == pair[1]
    assert not explain(f, backend="eager")(X, kind([Item(n) for n in (1, 2, 2)]), Item(2)).breaks


@pytest.mark.parametrize("name", ["index", "remove"])
def test_what_is_not_found_raises_as_in_eager(name: str) -> None:
    def f(x: torch.Tensor, items: list[Item]) -> Any:
        try:
            getattr(items, name)(Item(9))
        except ValueError as error:
            return x + 1, str(error)
        return x

    items = [Item(1), Item(2)]
    assert_same(jitney.compile(f, backend="eager")(X, items), f(X, items))


def test_a_comparison_that_changes_the_list() -> None:
    def f(x: torch.Tensor, items: list[Any]) -> Any:
        return x + items.count(5), len(items)

    def made() -> list[Any]:
        items: list[Any] = []
        items += [1, Odd(items), 5]
        return items

    def calls(function: Any) -> Any:
        items = made()
        return function(X, items), len(items)

    def limited(function: Any) -> Any:
        return calls(function)

    assert_same(limited(jitney.compile(f, backend="eager")), limited(f))
