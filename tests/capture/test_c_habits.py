"""What C code asks of the program's objects on its way: how, when, and whether at all."""

from __future__ import annotations

import collections
import copy
import gc
import weakref
from typing import Any

import pytest

import jitney
from tests.capture.run_capture import X, capture, same_as_eager


class Rounded:
    def __round__(self, *digits: Any) -> Any:
        return len(digits), digits

    def __abs__(self) -> Any:
        return 3


class Bare:
    __slots__ = ()


LOG: list[str] = []


class Asked:
    def __init__(self, error: Any = None) -> None:
        self.error = error

    def __iter__(self) -> Any:
        LOG.append("iter")
        yield 1
        LOG.append("more")
        yield 2

    def __len__(self) -> int:
        LOG.append("len")
        if self.error is not None:
            raise self.error
        return 2


class Hinted:
    def __iter__(self) -> Any:
        LOG.append("iter")
        return iter((1, 2))

    def __length_hint__(self) -> int:
        LOG.append("hint")
        return 2


class Counted(list):  # type: ignore[type-arg]
    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return 99


class CountedDict(dict):  # type: ignore[type-arg]
    asked = 0

    def __contains__(self, key: object) -> bool:
        CountedDict.asked += 1
        return True


CALLS = {
    "round": lambda: round(Rounded()),  # type: ignore[call-overload]
    "round to none": lambda: round(Rounded(), None),  # type: ignore[call-overload]
    "round to two": lambda: round(Rounded(), 2),  # type: ignore[call-overload]
    "round by name": lambda: round(Rounded(), ndigits=2),  # type: ignore[call-overload]
    "round none by name": lambda: round(Rounded(), ndigits=None),  # type: ignore[call-overload]
    "vars of a number": lambda: _vars(3),
    "vars of slots": lambda: _vars(Bare()),
    "vars": lambda: _vars(Rounded()),
    "list": lambda: (list(Asked()), LOG),  # type: ignore[call-overload]
    "tuple": lambda: (tuple(Asked()), LOG),  # type: ignore[arg-type]
    "unpacked": lambda: ([*Asked()], LOG),  # type: ignore[misc]
    "unpacked in a tuple": lambda: ((*Asked(), 1), LOG),  # type: ignore[misc]
    "set": lambda: (set(Asked()), LOG),  # type: ignore[call-overload]
    "of an error": lambda: (list(Asked(TypeError)), LOG),  # type: ignore[call-overload]
    "hinted": lambda: (list(Hinted()), LOG),  # type: ignore[call-overload]
    "sorted inside": lambda: _sorted_inside(False),
    "changed while sorting": lambda: _sorted_inside(True),
    "raised while sorting": lambda: _raised_inside(),
}


def _vars(value: Any) -> Any:
    try:
        return vars(value)
    except TypeError as error:
        return str(error)


def _sorted_inside(change: bool) -> Any:
    items, seen = [3, 1, 2], []

    def key(item: int) -> int:
        seen.append(list(items))
        if change:
            items.append(9)
        return item

    try:
        items.sort(key=key)
    except ValueError as error:
        return str(error), items, seen
    return items, seen


def _raised_inside() -> Any:
    items = [3, 1, 2]
    try:
        items.sort(key=lambda item: 1 // (item - 1))
    except ZeroDivisionError:
        return items
    return None


@pytest.mark.parametrize("name", CALLS)
def test_as_eager(name: str) -> None:
    def program(compile: Any) -> Any:
        LOG.clear()
        compiled = compile(lambda x: (x + 1, CALLS[name]()))
        first = copy.deepcopy(compiled(X))
        return [first, compiled(X)]

    same_as_eager(program)


def test_guards_ask_no_subclass() -> None:
    items, names = Counted([1, 2]), CountedDict(a=1)

    def function(x: Any, items: Any, names: Any) -> Any:
        for item in items:
            x = x + item
        return x + dict.get(names, "b", 2)

    compiled = jitney.compile(function, backend="eager")
    for _ in range(6):
        found = compiled(X, items, names)
    assert Counted.asked == 0 and CountedDict.asked == 0
    assert found.tolist() == (X + 5).tolist()
    items.append(4)
    assert compiled(X, items, names).tolist() == (X + 9).tolist()
    names["b"] = 5
    assert compiled(X, items, names).tolist() == (X + 12).tolist()
    assert Counted.asked == 0 and CountedDict.asked == 0


def test_a_capture_lets_go_of_its_generators() -> None:
    class Held:
        pass

    def function(x: Any, held: Any) -> Any:
        def each() -> Any:
            yield held
            yield 2

        for _ in each():
            x = x + 1
        return x

    held = Held()
    frame = capture(function, X, held)
    told = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        frame = capture(function, X, held)
        assert frame is not None
        del frame, held
        assert told() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("change", [None, 5])
def test_keys_and_items_that_are_compared(change: Any) -> None:
    class Key:
        def __init__(self, n: int) -> None:
            self.n = n

        def __hash__(self) -> int:
            return hash((3, "a"))

        def __eq__(self, other: object) -> bool:
            return change is not None

    def program(compile: Any) -> Any:
        table = {(i, "a"): i for i in range(4, 9)}
        compiled = compile(lambda x: x + table.get((3, "a"), 50) + table.get((5, "a"), 60))
        seen = [compiled(X)]
        table[Key(1)] = 7  # type: ignore[index]
        return [*seen, compiled(X)]

    same_as_eager(program)


COMPARED = {
    "lists": lambda a, b: ([a] == [b], [1, a] == [1], [a] != []),
    "tuples": lambda a, b: ((a,) == (b,), (a, 1) != (a,), ((a,), 1) == ((b,), 1)),
    "dicts": lambda a, b: {1: a} == {1: b},
    "nested": lambda a, b: [{1: [a]}] != [{1: [b]}],
    "in": lambda a, b: (a in [b], (a,) in [(b,)]),
    "index": lambda a, b: [1, b, a].index(a),
    "count": lambda a, b: ((1, b, a).count(a), [(a,), (b,)].count((a,))),
    "remove": lambda a, b: _without([1, b, a, 2], a),
    "deque": lambda a, b: collections.deque([a]) == collections.deque([b]),
}


def _without(items: list[Any], item: Any) -> Any:
    items.remove(item)
    return len(items), items[-1], items[0]


class Plain:
    pass


@pytest.mark.parametrize("name", COMPARED)
def test_items_that_become_the_same(name: str) -> None:
    def program(compile: Any) -> Any:
        a, b = Plain(), Plain()
        compiled = compile(lambda x, a, b: (x, COMPARED[name](a, b)))
        return [compiled(X, a, b), compiled(X, a, a), compiled(X, b, a)]

    same_as_eager(program)
