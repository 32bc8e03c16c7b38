"""What C code keeps in an object counts: another value of the same type is another call."""

from __future__ import annotations

import array
import datetime
import operator
import os
import re
import threading
import warnings
from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter, methodcaller
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import jitney
from tests.capture.run_capture import X, assert_same

MEMBERS = {1, 2}


class Whole(int):
    """Says of itself that it equals anything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Text(str):
    pass


def _set(*items: int) -> set[int]:
    found: set[int] = set()
    for item in items:
        found.add(item)
    return found


@pytest.mark.parametrize(
    ("f", "one", "other"),
    [
        (lambda x, v: x * v, np.float64(2.5), np.float64(1.5)),
        (lambda x, v: x * int(v), np.int64(2), np.int64(3)),
        (lambda x, v: x * 2 if v else x, np.bool_(True), np.bool_(False)),
        (lambda x, v: x * v, Whole(3), Whole(4)),
        (lambda x, v: x * len(v), Text("a"), Text("ab")),
        (lambda x, v: x * v[0], np.array([1.0, 2.0]), np.array([5.0, 2.0])),
        (lambda x, v: x * len(v), np.array([1.0]), np.array([5.0, 2.0])),
        (lambda x, v: x * sum([float(i) for i in v]), np.array([1.0]), np.array([5.0])),
        (lambda x, v: x * v[0], bytearray(b"\1"), bytearray(b"\3")),
        (lambda x, v: x * v[0], memoryview(b"\1"), memoryview(b"\3")),
        (lambda x, v: x * v[0], array.array("i", [1]), array.array("i", [2])),
        (lambda x, v: x * float(v + 1), Decimal("1.5"), Decimal("2.5")),
        (lambda x, v: (x, str(v)), Decimal("1"), Decimal("1.0")),
        (lambda x, v: x * v.total_seconds(), datetime.timedelta(1), datetime.timedelta(2)),
        (lambda x, v: x * 2 if re.match(v, "abc") else x, re.compile("a"), re.compile("b")),
        (lambda x, v: (x, v.group(0)), re.match("a+", "aab"), re.match("a+", "ab")),
        (lambda x, v: x * v([1, 2]), operator.itemgetter(0), operator.itemgetter(1)),
        (lambda x, v: x * v(SimpleNamespace(a=2, b=3)), attrgetter("a"), attrgetter("b")),
        (lambda x, v: (x, v("aA")), methodcaller("upper"), methodcaller("lower")),
        (lambda x, v: (x, v("a,b")), methodcaller("split", ","), methodcaller("split", sep="b")),
        (lambda x, v: x * v.item(), np.float32(2.5), np.float32(1.5)),
        (lambda x, v: (x, v.astype(np.int64) + 1, v.item()), np.int32(2), np.int32(3)),
        (lambda x, v: (x, os.fspath(v)), "a", "b"),
        (lambda x, v: (x, os.fspath(v)), Path("a"), Path("b")),
        (lambda x, v: x * v["a"], MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
        (lambda x, v: [x * b for _, b in v], {"a": 1}.items(), {"a": 2}.items()),
        (lambda x, v: (x, repr(v)), SimpleNamespace(a=1), SimpleNamespace(a=2)),
        (lambda x, v: (x, str(v)), ValueError("a"), ValueError("b")),
        (lambda x, v: [x * i for i in v], _set(9, 17), _set(17, 9)),
        (lambda x, v: (x * len(v), X in v), {X}, {X, 3}),
    ],
)
def test_another_value(f: Callable[..., Any], one: Any, other: Any) -> None:
    compiled = jitney.compile(f)
    for value in (one, other, one):
        assert_same(compiled(X, value), f(X, value))


def test_a_set_of_the_modules_changes_in_place() -> None:
    compiled = jitney.compile(lambda x: x * (3 in MEMBERS))
    try:
        assert_same([compiled(X), compiled(X)], [X * 0, X * 0])
        MEMBERS.add(3)
        assert_same(compiled(X), X)
    finally:
        MEMBERS.discard(3)


def test_containers_that_could_not_be_read_stay_as_they_are() -> None:
    objects = {X, 3}
    nested = {"a": [1, objects], "b": 2}
    compiled = jitney.compile(lambda x, v: (x, list(v), len(v["a"][1])))
    assert compiled(X, nested)[1:] == (["a", "b"], 2)
    assert nested == {"a": [1, objects], "b": 2} and len(objects) == 2


class Ours(threading.local):
    """Has its attributes from the start in every thread."""

    def __init__(self) -> None:
        self.factor = 2


@pytest.mark.parametrize("kind", [threading.local, Ours])
def test_what_a_thread_has_of_its_own(kind: Any) -> None:
    ours = kind()

    def f(x: torch.Tensor) -> torch.Tensor:
        ours.last = ours.factor
        return x * ours.factor

    compiled = jitney.compile(f, backend="eager")

    def call(factor: int) -> None:
        ours.factor = factor
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append((float(compiled(torch.ones(1))), ours.last))

    found: list[Any] = []
    for factor in (3, 3, 5):
        call(factor)
    other = threading.Thread(target=call, args=(7,))
    other.start()
    other.join()
    call(5)
    assert found == [(3.0, 3), (3.0, 3), (5.0, 5), (7.0, 7), (5.0, 5)]


def test_a_list_in_a_methodcaller_changes() -> None:
    kept = [1]
    caller = methodcaller("count", kept)
    compiled = jitney.compile(lambda x, c: x * c([[1], [2]]))
    assert_same(compiled(X, caller), X * 1)
    kept[0] = 3
    assert_same(compiled(X, caller), X * 0)


def test_getters_made_in_the_frame_are_called_without_a_break() -> None:
    given = SimpleNamespace(a=Point(2, 3))

    def f(x: torch.Tensor) -> Any:
        both = attrgetter("a.x", "a.y")(given)
        return methodcaller("mul", both[0])(x), both, methodcaller("sum", dim=0)(x)

    compiled = jitney.compile(f, backend="eager", fullgraph=True)
    for y in (3, 4):
        given.a = Point(2, y)
        assert_same(compiled(X), f(X))


def test_text_of_a_named_tuple() -> None:
    compiled = jitney.compile(
        lambda x, p: (x + 1, repr(p), str(p)), backend="eager", fullgraph=True
    )
    for y in (3, 4):
        assert_same(compiled(X, Point(1, y))[1:], (repr(Point(1, y)), str(Point(1, y))))


class Point(NamedTuple):
    x: int
    y: int
