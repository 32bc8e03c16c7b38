# ruff: noqa: C417
"""Iterators, and what they go over, across graph breaks: eager's types, order and errors."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder
from tests.equal import assert_equal

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)
X = torch.tensor([1.0, 2.0, -3.0])


def counted(values: Any, log: list[Any]) -> Iterator[Any]:
    for value in values:
        log.append(("yields", value))
        yield value
    log.append("end")


@program()
def a_list_grows_in_its_loop(log):
    items = [1, 2]
    for item in items:
        jitney.graph_break()
        if len(items) < 4:
            items.append(item + 10)
        log.append(item)


@program()
def a_generator_inside_of_others(log):
    for number, (a, b) in enumerate(zip(counted([1, 2, 3], log), "xyz", strict=True), 5):
        jitney.graph_break()
        log.append((number, a, b))


@program()
def functions_are_called_as_the_loop_goes(log):
    for item in map(lambda v: log.append(("maps", v)) or v, [1, 2]):
        jitney.graph_break()
        log.append(item)
    for item in filter(lambda v: log.append(("tests", v)) or v, [1, 0, 2]):
        jitney.graph_break()
        log.append(item)


@program()
def types_behind_a_break(log):
    items = [1, 2, 3]
    made = (
        iter(items), zip(items, "abc"), enumerate(items), map(str, items), filter(None, items),
        reversed(items), iter((1, 2)), iter(range(3)), iter({"a": 1, "b": 2}), iter({1, 2}),
        iter(collections.deque([1, 2])), iter("ab"), itertools.chain(items, items),
        itertools.islice(items, 2), itertools.count(3), itertools.cycle(items),
    )  # fmt: skip
    log.append([next(iterator) for iterator in made])
    jitney.graph_break()
    items.append(9)
    log.append([type(iterator).__name__ for iterator in made])
    log.append([list(itertools.islice(iterator, 5)) for iterator in made])


@program()
def map_ends_where_its_function_does(log):
    log.append(list(map(next, [iter([1]), iter([]), iter([3])])))


@program()
def an_object_with_getitem_alone(log):
    class Numbers:
        def __init__(self):
            self.last = 2

        def __getitem__(self, index):
            if index > self.last:
                raise IndexError(index)
            return index

    numbers = Numbers()
    for number in numbers:
        jitney.graph_break()
        numbers.last = 3
        log.append(number)


def _grows(kind: Callable[[], Any], add: Callable[[Any], None], breaks: bool) -> Any:
    def grow(log: list[Any]) -> None:
        owner = kind()
        try:
            for item in owner:
                log.append(item)
                add(owner)
                if breaks:
                    jitney.graph_break()
        except RuntimeError as error:
            log.append(str(error))
        for _ in owner:
            add(owner)

    return grow


def shared(log: list[Any]) -> None:
    a, b = itertools.tee(log.append(n) or n for n in range(3))
    next(b)
    log += [p + q for p, q in zip(a, b)]


def shared_behind_a_break(log: list[Any]) -> None:
    one = iter(log.append(n) or n for n in range(4))
    a, b, c = itertools.tee(one, 3)
    log += [next(a), next(b)]
    jitney.graph_break()
    log += [next(one), list(a), list(b), list(c), type(a).__name__]


def chained(log: list[Any]) -> None:
    log += itertools.chain.from_iterable(Indexed() if n else "ab" for n in range(2))
    kept = itertools.chain.from_iterable([[1, 2], (3,)])
    log.append(next(kept))
    jitney.graph_break()
    log += [type(kept).__name__, *kept]


class Indexed:
    """Iterated by its items."""

    def __getitem__(self, place: int) -> int:
        if place > 2:
            raise IndexError
        return place * 10


PROGRAMS += [
    pytest.param(program, (), {}, id=program.__name__)
    for program in (shared, shared_behind_a_break, chained)
]
CHANGING = {
    "dict": (lambda: {"a": 1, "b": 2}, lambda d: d.update(c=3)),
    "set": (lambda: {1, 2}, lambda s: s.add(30)),
    "deque": (lambda: collections.deque([1, 2]), lambda d: d.append(3)),
}
PROGRAMS += [
    pytest.param(_grows(*CHANGING[kind], breaks), (), {}, id=f"{kind}-{breaks}")
    for kind in CHANGING
    for breaks in (False, True)
]


def outcome(function: Any, log: list[Any]) -> Any:
    try:
        function(log)
    except RuntimeError as error:
        log.append(repr(error))
    return log


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_iteration_is_eagers(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    for _ in range(2):
        assert outcome(compiled, []) == outcome(function, [])


def test_a_container_from_outside_that_changed_before_its_loop() -> None:
    def f(table: dict[str, int], numbers: set[int], queue: Any) -> list[Any]:
        log: list[Any] = []
        table["z"] = table.pop("a")
        numbers.add(50)
        queue.append(7)
        for owner in (table, numbers, queue):
            for item in owner:
                jitney.graph_break()
                log.append(item)
        try:
            for key in table:
                jitney.graph_break()
                table[key + "p"] = 3
        except RuntimeError as error:
            log.append(str(error))
        return log

    def given() -> Any:
        return {"a": 1, "b": 2}, {1, 2}, collections.deque([1, 2])

    compiled = jitney.compile(f, backend="eager")
    assert compiled(*given()) == f(*given()) == compiled(*given())


def test_a_returned_iterator_is_of_eagers_type() -> None:
    def f(x: torch.Tensor) -> Any:
        made = zip([x], [1]), enumerate([x]), map(str, [1]), filter(None, [1])
        jitney.graph_break()
        return made

    assert [*map(type, jitney.compile(f, backend="eager")(X))] == [zip, enumerate, map, filter]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "reversed": reversed,
    "reversed keys": lambda d: reversed(d.keys()),
    "reversed values": lambda d: reversed(d.values()),
    "reversed items": lambda d: reversed(d.items()),
    "values": lambda d: iter(d.values()),
    "items": lambda d: iter(d.items()),
}


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("view", VIEWS)
def test_an_iterator_over_a_dict_notices_behind_a_break(view: str, kind: Any) -> None:
    def f(x: torch.Tensor, table: Any, when: str) -> Any:
        own = kind(p=1, q=2, r=3)
        log: list[Any] = []
        for owner in (own, table):
            iterator = VIEWS[view](owner)
            log.append(next(iterator))
            if when == "before":
                owner["s"] = 4
            jitney.graph_break()
            if when != "before" or owner is own:
                log.append(type(iterator).__name__)
            try:
                for item in iterator:
                    log.append(item)
                    if when == "meanwhile":
                        owner["s"] = 4
            except RuntimeError as error:
                log.append(str(error))
        return log, x + 1

    compiled = jitney.compile(f, backend="eager")
    for when in ("never", "meanwhile", "before"):
        for _ in range(2):
            tables = [kind(a=1, b=2, c=3) for _ in range(2)]
            assert compiled(X, tables[0], when)[0] == f(X, tables[1], when)[0]
            assert [*tables[0].items()] == [*tables[1].items()]


def _same(f: Any, *given: Callable[[], Any]) -> None:
    compiled = jitney.compile(f, backend="eager")
    for make in given:
        for _ in range(2):
            ours, eagers = make(), make()
            assert (compiled(*ours), ours) == (f(*eagers), eagers)


@pytest.mark.parametrize("view", [iter, reversed])
def test_a_list_that_grew_before_its_loop(view: Any) -> None:
    def f(items: list[int]) -> Any:
        log: list[int] = []
        items.append(1)
        items.append(2)
        for item in view(items):
            log.append(item)
            jitney.graph_break()
            if len(log) > 9:
                break
        return log

    _same(f, lambda: ([],), lambda: ([5],))


@pytest.mark.parametrize("view", [iter, reversed])
@pytest.mark.parametrize("own", [False, True])
def test_an_iterator_past_the_end_of_its_list(view: Any, own: bool) -> None:
    def f(items: list[int]) -> Any:
        items = [*items] if own else items
        log: list[int] = []
        for item in view(items):
            log.append(item)
            del items[1:]
            items[0] = 9
            jitney.graph_break()
        return log

    _same(f, lambda: ([1, 2, 3, 4],), lambda: ([1],), lambda: ([],))


def test_values_of_an_ordered_dict_are_stored_in_its_loop() -> None:
    def f(table: Any) -> Any:
        log: list[Any] = []
        for key in table:
            table[key] = len(log)
            log.append(key)
            jitney.graph_break()
        return log

    _same(f, lambda: (collections.OrderedDict(a=1, b=2, c=3),))


@pytest.mark.parametrize("program", [shared, chained])
def test_iterators_of_iterators_are_in_the_graph(program: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        log: list[Any] = []
        if program is shared:
            shared(log)
        else:
            log += itertools.chain.from_iterable([Indexed(), [x, x]])
        return x + len(log)

    x = torch.ones(2)
    assert torch.equal(jitney.compile(f, backend="eager", fullgraph=True)(x), f(x))


def what_is_behind_pairs_runs_behind_the_break(log: list[Any]) -> Any:
    pairs = itertools.pairwise(counted([1, 2, 3, 4], log))
    found = next(pairs)
    jitney.graph_break()
    log.append("break")
    return found, list(pairs)


def pairs_without_an_end(log: list[Any]) -> Any:
    pairs = itertools.pairwise(counted(itertools.count(), log))
    found = next(pairs)
    jitney.graph_break()
    return found, next(pairs)


def pairs_of_a_list_that_grows(log: list[Any]) -> Any:
    numbers = [1, 2, 3]
    pairs = itertools.pairwise(numbers)
    found = next(pairs)
    jitney.graph_break()
    numbers.append(4)
    return found, list(pairs), type(pairs)


@pytest.mark.parametrize(
    "function",
    [what_is_behind_pairs_runs_behind_the_break, pairs_without_an_end, pairs_of_a_list_that_grows],
)
def test_an_iterator_that_does_not_say_what_it_goes_over(function: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    expected = outcome(function, [])
    for _ in range(2):
        assert outcome(compiled, []) == expected


def test_an_iterator_over_items_by_number_is_asked_for_its_method() -> None:
    class Counted:
        def __getitem__(self, place: int) -> int:
            return [1, 2][place]

    def f(x: torch.Tensor, items: Counted) -> Any:
        iterator = iter(items)
        return x + 1, iterator.__next__(), iterator.__next__(), next(iterator, None)

    found = jitney.compile(f, backend="eager")(torch.ones(1), Counted())
    assert_equal(found, f(torch.ones(1), Counted()))


def scanned_in_a_loop(x: torch.Tensor, folder: Any) -> Any:
    names = []
    with os.scandir(folder) as items:
        for item in items:
            names.append(item.name)
    return x + 1, sorted(names)


def scanned_at_once(x: torch.Tensor, folder: Any) -> Any:
    with os.scandir(folder) as items:
        found = list(items)
    return x + 1, sorted(item.name for item in found)


@pytest.mark.parametrize("function", [scanned_in_a_loop, scanned_at_once])
def test_an_iterator_of_a_class_made_at_run_time(function: Any, tmp_path: Any) -> None:
    """The capture went over it, and left nothing for the call."""
    for name in "ab":
        (tmp_path / name).touch()
    compiled = jitney.compile(function)
    for _ in range(4):
        assert_equal(compiled(torch.ones(2), tmp_path), function(torch.ones(2), tmp_path))
