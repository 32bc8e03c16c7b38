"""Instances of classes made from builtin ones keep their class, contents and attributes, and are
made without the program's ``__new__``."""

from __future__ import annotations

import abc
import collections
import copy
import datetime
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import assert_same


class Text(str):
    tag: Any


class Whole(int):
    tag: Any


class Real(float):
    tag: Any


class Frozen(frozenset[Any]):
    tag: Any


class Queue(collections.deque[Any]):
    tag: Any


class Doubling(collections.deque[Any]):
    def append(self, value: Any) -> None:
        super().append(value * 2)


class Unit(str):
    """Its ``__new__`` gives it an attribute."""

    def __new__(cls, text: str, value: Any) -> Any:
        made = str.__new__(cls, text)
        made.value = value  # type: ignore[attr-defined]
        return made


class Wanting:
    """Its ``__new__`` takes what is not kept."""

    def __new__(cls, value: Any) -> Any:
        made = object.__new__(cls)
        made.value = value  # type: ignore[attr-defined]
        return made


class WantingList(list[Any]):
    def __new__(cls, count: int) -> Any:
        return list.__new__(cls)

    def __init__(self, count: int) -> None:
        super().__init__(range(count))


MADE: dict[str, Callable[[Any], Any]] = {
    "a text": lambda x: Text("a"),
    "a whole number": lambda x: Whole(5),
    "a real number": lambda x: Real(2.5),
    "a frozen set": lambda x: Frozen([1, 2]),
    "a queue": lambda x: Queue([1, x], 3),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_what_is_made_is_a_new_one_each_time(make: Callable[[Any], Any]) -> None:
    def made(x: torch.Tensor) -> Any:
        value = make(x)
        value.tag = [x + 1]
        jitney.graph_break()
        value.tag.append(2)
        return value

    compiled, x = jitney.compile(made, backend="eager"), torch.ones(2)
    first, second = compiled(x), compiled(x + 1)
    assert first is not second
    for found, want in ((first, made(x)), (second, made(x + 1))):
        assert type(found) is type(want)
        assert_same(found.tag, want.tag)
        if isinstance(want, Queue):
            assert_same(list(found), list(want))
            assert found.maxlen == 3
        else:
            assert found == want


def test_what_is_left_is_made_without_the_programs_new() -> None:
    def made(x: torch.Tensor) -> Any:
        values = Wanting(x + 1), WantingList(3), Unit("m", 2)
        jitney.graph_break()
        return values

    compiled, x = jitney.compile(made, backend="eager"), torch.ones(2)
    for _ in range(2):
        one, numbers, unit = compiled(x)
        assert_same(one.value, x + 1)
        assert type(numbers) is WantingList and numbers == [0, 1, 2]
        assert type(unit) is Unit and unit == "m" and unit.value == 2


def test_a_given_queue_keeps_its_class_and_length() -> None:
    def filled(x: torch.Tensor, one: Any, other: Any) -> Any:
        one.append(x + 1)
        other.append(3)
        kinds = type(one), type(other)
        jitney.graph_break()
        one.append(4)
        other.append(5)
        return kinds, copy.copy(other)

    compiled, x = jitney.compile(filled, backend="eager"), torch.ones(2)
    given, wanted = [(Queue([1, 2], 3), Doubling([1])) for _ in range(2)]
    for _ in range(2):
        assert_same(compiled(x, *given), filled(x, *wanted))
        assert_same(list(given[0]), list(wanted[0]))
        assert list(given[1]) == list(wanted[1]) and given[0].maxlen == 3


def test_iterators_of_a_queue_do_not_notice_a_store() -> None:
    def stored(x: torch.Tensor, queue: Any) -> Any:
        queue[0] = 9
        return x + 1

    queue = collections.deque([1, 2, 3])
    iterator = iter(queue)
    next(iterator)
    jitney.compile(stored, backend="eager")(torch.ones(2), queue)
    assert list(iterator) == [2, 3] and queue[0] == 9


def test_a_member_of_a_set_may_be_replaced_by_its_equal() -> None:
    def replaced(x: torch.Tensor, members: set[Any]) -> Any:
        members.discard(1)
        members.add(True)
        return x + 1

    members: set[Any] = {1, 5}
    jitney.compile(replaced, backend="eager")(torch.ones(2), members)
    assert any(member is True for member in members)


def test_c_code_sees_a_factory_that_was_set() -> None:
    def set_factory(x: torch.Tensor, table: Any) -> Any:
        table.default_factory = list
        return x + 1, copy.copy(table).default_factory, table["new"]

    compiled = jitney.compile(set_factory, backend="eager")
    for _ in range(2):
        table: Any = collections.defaultdict(dict)
        y, factory, new = compiled(torch.ones(2), table)
        assert factory is list is table.default_factory and new == []


class Counting(Iterator[int]):
    def __init__(self) -> None:
        self.n = 0

    def __next__(self) -> int:
        self.n += 1
        return self.n


def test_an_iterator_is_its_own_iterator() -> None:
    def iterated(x: torch.Tensor) -> Any:
        counting = Counting()
        return x + 1, iter(counting) is counting, next(iter(counting)), type(iter(counting))

    assert_same(jitney.compile(iterated, backend="eager")(torch.ones(2)), iterated(torch.ones(2)))


def test_what_depends_on_the_clock_is_asked_each_time() -> None:
    def now(x: torch.Tensor) -> Any:
        return x + 1, datetime.datetime.now()

    compiled = jitney.compile(now, backend="eager")
    times = [compiled(torch.ones(2))[1] for _ in range(3)]
    assert times[0] < times[1] < times[2]


class Zone(datetime.tzinfo):
    hours = 1

    def utcoffset(self, when: Any) -> Any:
        return datetime.timedelta(hours=self.hours)

    def dst(self, when: Any) -> Any:
        return None


def test_zones_of_the_program_are_asked_each_time() -> None:
    zone = Zone()
    given = datetime.datetime(2020, 1, 1, tzinfo=zone)

    def offset(x: torch.Tensor) -> Any:
        own = datetime.datetime(2020, 1, 1, tzinfo=zone)
        return x + 1, given.utcoffset(), str(given), own.isoformat(), own - given

    compiled, x = jitney.compile(offset, backend="eager"), torch.ones(2)
    for hours in (1, 2, 3):
        zone.hours = hours
        assert_same(compiled(x), offset(x))


def test_a_class_is_registered_after_what_comes_before() -> None:
    class Kind(abc.ABC):  # noqa: B024 - others are registered
        pass

    def registered(x: torch.Tensor, cls: type) -> Any:
        before = issubclass(cls, Kind)
        Kind.register(cls)
        return x + 1, before, issubclass(cls, Kind)

    compiled, x = jitney.compile(registered, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert_same(compiled(x, type("New", (), {})), (x + 1, False, True))


def test_proxies_are_looked_through_by_eager() -> None:
    held = collections.UserList([1])
    proxy: Any = weakref.proxy(held)

    def looked(x: torch.Tensor) -> Any:
        return x + 1, len(proxy), proxy[0], str(proxy), list(proxy)

    compiled, x = jitney.compile(looked, backend="eager"), torch.ones(2)
    for value in (2, 3):
        held.append(value)
        assert_same(compiled(x), looked(x))


GAINED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "__eq__": (lambda a: (a == 5, [a] == [5], 5 in [a]), lambda self, other: True),
    "__bool__": (lambda a: 1 if a else 2, lambda self: False),
    "__len__": (lambda a: 1 if a else 2, lambda self: 0),
    "__radd__": (lambda a: 1 + (a if hasattr(a, "n") else 1), lambda self, other: 7),
    "__str__": (lambda a: len(str(a)) if hasattr(a, "n") else 0, lambda self: "abc"),
}


@pytest.mark.parametrize("name", GAINED)
def test_a_class_may_gain_special_methods(name: str) -> None:
    ask, method = GAINED[name]

    class Plain:
        pass

    plain = Plain()
    compiled = jitney.compile(lambda x: (x + 1, ask(plain)), backend="eager")
    x = torch.ones(2)
    assert_same(compiled(x), (x + 1, ask(plain)))
    setattr(Plain, name, method)
    Plain.n = 1  # type: ignore[attr-defined]
    assert_same(compiled(x), (x + 1, ask(plain)))


def test_what_changes_while_it_is_searched() -> None:
    class Clearing:
        def __init__(self) -> None:
            self.held: Any = None

        def __eq__(self, other: object) -> bool:
            self.held.clear()
            return False

        __hash__ = None  # type: ignore[assignment]

    def searched(x: torch.Tensor) -> Any:
        first = Clearing()
        queue: Any = collections.deque([first, 1])
        first.held = queue
        try:
            return x + 1, 5 in queue
        except RuntimeError as error:
            return x + 1, str(error)

    assert_same(jitney.compile(searched, backend="eager")(torch.ones(2)), searched(torch.ones(2)))


def test_a_named_tuple_is_of_the_module_that_makes_it() -> None:
    def made(x: torch.Tensor) -> Any:
        return x + 1, collections.namedtuple("Pair", "a b").__module__

    for _ in range(2):
        found = jitney.compile(made, backend="eager")(torch.ones(2))
        assert found[1] == __name__


def test_a_frozen_set_is_its_own_copy() -> None:
    def copied(x: torch.Tensor, given: Any) -> Any:
        own = frozenset((3, 4))
        return x + 1, frozenset(own) is own, frozenset(given) is given

    x = torch.ones(2)
    found = jitney.compile(copied, backend="eager")(x, frozenset((1, 2)))
    assert_same(found, (x + 1, True, True))


def test_what_is_too_deep_runs_eager() -> None:
    def deep(x: torch.Tensor, count: int) -> Any:
        held: Any = []
        for _ in range(count):
            held = [held]
        jitney.graph_break()
        return x + 1, len(held)

    compiled, x = jitney.compile(deep, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert_same(compiled(x, 3000), (x + 1, 1))


def test_errors_of_our_own_are_told_not_raised() -> None:
    def misused(x: torch.Tensor) -> Any:
        ordered = collections.OrderedDict(a=1, b=2)
        dict.__delitem__(ordered, "a")
        return x + 1, len(ordered), ordered

    told = pytest.warns(UserWarning, match="KeyError")
    with jitney.options(eager_on_bug=True), told:
        found = jitney.compile(misused, backend="eager")(torch.ones(2))
    assert found[1] == 1


def test_a_set_chooses_as_eagers_would() -> None:
    def chosen(x: torch.Tensor, members: set[int]) -> Any:
        members.add(8)
        found = members.pop()
        members.add(found + 20)
        return x + 1, found, list(members)

    compiled, x = jitney.compile(chosen, backend="eager"), torch.ones(2)
    given, wanted = {1, 2, 3}, {1, 2, 3}
    for _ in range(6):
        assert_same(compiled(x, given), chosen(x, wanted))
        assert list(given) == list(wanted)
