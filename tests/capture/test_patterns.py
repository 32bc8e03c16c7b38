"""What ``match`` matches."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import jitney
from tests.capture.run_capture import adder

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)


class Number(int):
    pass


class Both(collections.UserDict, collections.abc.Sequence):
    pass


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Text(str):
    pass


class Nameless:
    __match_args__ = (1,)


class Wordy:
    __match_args__ = "xy"


def matched(value):
    match value:
        case Point(1, y):
            return "first", y
        case Point(x, 2):
            return "second", x
        case Number(n):
            return "number", n
        case Text(s):
            return "text", s
        case bool(b):
            return "bool", b
        case int(n) if n > 5:
            return "big", n
        case {"a": a, **rest}:
            return "map", a, rest
        case [a, *b, c]:
            return "sequence", a, b, c
        case _:
            return "other"


@program()
def what_patterns_match():
    values = (Point(1, 5), Point(3, 2), Point(4, 4), Number(4), Text("a"), True, 9, 2, {"a": 1})
    return [matched(value) for value in (*values, {"b": 1}, [1, 2, 3], [1], "abc", None)]


@program()
def patterns_that_cannot_match():
    found, kind = [], 5

    def wrong(value):
        match value:
            case Nameless(x):
                return x
            case Wordy(x):
                return x
            case Point(a, b, c):
                return a, b, c
            case Point(a, x=b):
                return b
            case object(x):
                return x
            case kind(x):
                return x

    for value in (Nameless(), Wordy(), Point(1, 2), 3, kind):
        try:
            found.append(wrong(value))
        except TypeError as error:
            found.append(str(error))
    return found


def kind_of(value):
    match value:
        case [*_]:
            return "sequence"
        case {}:
            return "mapping"


@program()
def what_classes_are_by_their_flags():
    found = [kind_of(Both()), kind_of(collections.deque()), kind_of(range(2)), kind_of("a")]
    try:
        match {"a": 1}:
            case {Key.a: _, "a": _}:
                found.append("matched")
    except ValueError as error:
        found.append(str(error))
    return found


class Key:
    a = "a"


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_patterns_match_as_in_eager(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()
