"""Objects that equal themselves alone, as keys of dicts and sets: two of them stay two."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log


class Thing:
    pass


def added(items: Iterable[Any]) -> int:
    seen = set()
    for item in items:
        seen.add(item)
    return len(seen)


def stored(items: Iterable[Any]) -> int:
    seen = {}
    for position, item in enumerate(items):
        seen[item] = position
    return len(seen)


def updated(made: Any, items: Any) -> int:
    made.update(items)
    return len(made)


COUNTS: dict[str, Callable[[list[Any]], Any]] = {
    "set": lambda k: len(set(k)),
    "frozenset": lambda k: len(frozenset(k)),
    "display": lambda k: len({k[0], k[1]}),
    "unpacked": lambda k: len({*k}),
    "comprehension": lambda k: len({i for i in k}),  # noqa: C416
    "dict comprehension": lambda k: len({i: 1 for i in k}),  # noqa: C420
    "in tuples": lambda k: len({(1, i) for i in k}),
    "fromkeys": lambda k: len(dict.fromkeys(k)),
    "fromkeys of a generator": lambda k: len(dict.fromkeys(i for i in k)),
    "dict of pairs": lambda k: len(dict([(k[0], 1), (k[1], 2)])),  # noqa: C406
    "dict of a zip": lambda k: len(dict(zip(k, (1, 2), strict=True))),
    "ordered": lambda k: len(collections.OrderedDict((i, 1) for i in k)),
    "counter": lambda k: len(collections.Counter(k)),
    "added": added,
    "stored": stored,
    "updated": lambda k: updated({k[0]}, k[1:]),
    "updated by a generator": lambda k: updated(set(), (i for i in k)),
    "dict updated by a zip": lambda k: updated({}, zip(k, (1, 2), strict=True)),
    "in": lambda k: 1 if k[0] in {k[1]} else 5,
    "get": lambda k: {k[0]: 1}.get(k[1], 7),
    "setdefault": lambda k: {k[0]: 1}.setdefault(k[1], 7),
    "pop": lambda k: {k[0]: 3}.pop(k[1], 9),
    "issubset": lambda k: 1 if {k[0]}.issubset(iter(k[1:])) else 5,
    "and": lambda k: len({k[0]} & {k[1]}),
    "or": lambda k: len({k[0]: 1} | {k[1]: 2}),
}


@pytest.mark.parametrize("make", [Thing, lambda: torch.nn.Linear(1, 1), lambda: torch.ones(2)])
@pytest.mark.parametrize("name", COUNTS)
def test_keys_that_become_one(name: str, make: Callable[[], Any]) -> None:
    count = COUNTS[name]

    def f(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        return x + count(items)

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(1)
    a, b = make(), make()
    for items in ([a, b], [b, b], [a, a], [b, a]):
        assert torch.equal(compiled(x, items), f(x, items))


def test_an_iterator_that_is_a_value_is_not_read() -> None:
    def f(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        made = {"a": iter(items)}
        made.setdefault("b", iter(items))
        return x + next(made["a"]) + next(made["b"])

    x = torch.ones(1)
    assert torch.equal(jitney.compile(f, backend="eager")(x, [2, 3]), f(x, [2, 3]))


KEYS_OF_NUMBERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "set": lambda x, n: x * len(set([n, 3, n])),  # noqa: C405
    "frozenset": lambda x, n: x * len(frozenset((n, 3))),
    "union": lambda x, n: x * len({3}.union([n], (4,))),
    "generator": lambda x, n: x * len(set(i % 2 for i in [n, n + 1])),  # noqa: C401
    "fromkeys": lambda x, n: x * len(dict.fromkeys([n, 3])),
    "pairs": lambda x, n: x * dict([(n, n + 1), (-1, 2)])[n],  # noqa: C406
    "Counter": lambda x, n: x * collections.Counter([n, 3, n])[n],
}


@pytest.mark.parametrize("name", KEYS_OF_NUMBERS)
def test_numbers_that_change_become_keys_without_a_break(name: str) -> None:
    function = KEYS_OF_NUMBERS[name]
    compiled, x = jitney.compile(function, fullgraph=True), torch.ones(3)
    for n in (1, 2, 3, 2, 5):
        assert torch.equal(compiled(x, n), function(x, n))


def test_comparisons_of_numbers_that_change_are_truths_in_lists() -> None:
    def chosen(x: torch.Tensor, n: int) -> torch.Tensor:
        nested = torch.tensor([[n > 3], [n < 2]])
        return torch.where(torch.tensor([n % 2 == 0]), x, -x) * nested

    log.clear()
    compiled, x = jitney.compile(chosen, fullgraph=True), torch.ones(3)
    for n in (1, 2, 4, 3, 6, 8):
        assert torch.equal(compiled(x, n), chosen(x, n))
    assert len(log.events("entry")) <= 5  # not one for each number


def by_shape(cache: dict[Any, Any], x: torch.Tensor) -> torch.Tensor:
    key = tuple(x.shape)
    if key not in cache:
        cache[key] = torch.full(x.shape, 2.0)
    return x * cache[key]


def by_shape_and_text(cache: dict[Any, Any], x: torch.Tensor) -> torch.Tensor:
    cache.setdefault((("rows", x.shape[0]), "n"), []).append(x.shape[0])
    return x * sum(len(seen) * rows for ((_, rows), _), seen in cache.items())


@pytest.mark.parametrize("function", [by_shape, by_shape_and_text])
def test_numbers_in_keys_are_no_symbols(function: Callable[..., Any]) -> None:
    """Caches of several layers, by sizes that change."""
    compiled = jitney.compile(function)
    caches: list[list[dict[Any, Any]]] = [[{}, {}], [{}, {}]]
    for number in range(8):
        x = torch.ones(2 + number % 3, 4)
        eager = function(caches[0][number % 2], x)
        assert torch.equal(compiled(caches[1][number % 2], x), eager)
        assert [list(c) for c in caches[0]] == [list(c) for c in caches[1]]
