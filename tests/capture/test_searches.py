"""Searches in lists whose items are compared by their own methods."""

from __future__ import annotations

import collections
import dataclasses
import operator
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


def test_the_item_itself_is_found_without_a_comparison() -> None:
    def f(x: torch.Tensor, items: list[Any], wanted: Any) -> Any:
        return x, items.count(wanted), wanted in items

    class Never(Item):
        def __eq__(self, other: object) -> bool:
            return False

    compiled = jitney.compile(f, backend="eager")
    items = [Never(1), Never(1)]
    for wanted in (Never(1), items[0], items[1]):
        assert_same(compiled(X, items, wanted), f(X, items, wanted))


def test_a_comparison_that_breaks_is_made_once() -> None:
    class Noted:
        def __init__(self) -> None:
            self.seen = 0

        def __eq__(self, other: object) -> Any:
            self.seen += 1
            return X > 100

    def f(x: torch.Tensor, items: list[Any]) -> Any:
        try:
            return x, items.index(5)
        except RuntimeError:
            return x, [item.seen for item in items]

    assert_same(jitney.compile(f, backend="eager")(X, [Noted()]), f(X, [Noted()]))


@pytest.mark.parametrize("search", [operator.countOf, operator.indexOf])
def test_searches_of_the_operator_module(search: Any) -> None:
    def f(x: torch.Tensor, items: list[Any], wanted: Any) -> Any:
        return x, search(items, wanted)

    compiled = jitney.compile(f, backend="eager")
    for numbers in ((1, 2), (2, 2), (1, 2)):
        items = [Item(n) for n in (*numbers, 2)]
        assert_same(compiled(X, items, Item(2)), f(X, items, Item(2)))


def test_a_list_that_iterates_otherwise() -> None:
    class Other(list[Any]):
        def __iter__(self) -> Any:
            return iter([Item(9)])

    def f(x: torch.Tensor, items: Any) -> Any:
        return x, Item(1) in items, Item(9) in items

    items = Other([Item(1)])
    assert_same(jitney.compile(f, backend="eager")(X, items), f(X, items))


def test_tuples_compare_items_before_lengths() -> None:
    def f(x: torch.Tensor, kind: Any) -> Any:
        seen: list[Any] = []

        class Noted:
            def __eq__(self, other: object) -> bool:
                seen.append(1)
                return True

        return x, kind([Noted()]) == kind([1, 2]), kind([Noted()]) == kind([1]), seen

    for kind in (list, tuple):
        assert_same(jitney.compile(f, backend="eager")(X, kind), f(X, kind))


def test_a_deque_of_another_greatest_length() -> None:
    """What falls out at its other end depends on it."""

    def push(x: torch.Tensor, last: collections.deque[int]) -> tuple[torch.Tensor, list[int]]:
        last.append(4)
        return x * sum(last), list(last)

    compiled = jitney.compile(push)
    for most in (3, 4, 5, None, 7, 3):
        given, expected = (collections.deque([1, 2, 3], most) for _ in range(2))
        assert compiled(torch.ones(2), given)[1] == push(torch.ones(2), expected)[1]
        assert given == expected


def test_a_deque_whose_greatest_length_is_a_changing_number() -> None:
    def window(x: torch.Tensor, n: int) -> tuple[torch.Tensor, list[int]]:
        last: collections.deque[int] = collections.deque(maxlen=n)
        for i in range(4):
            last.append(i)
        return x + 1, list(last)

    compiled = jitney.compile(window)
    for n in (1, 2, 3, 4, 5, 2):
        assert compiled(torch.ones(2), n)[1] == window(torch.ones(2), n)[1]
