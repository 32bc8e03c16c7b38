"""Copies of lists, dicts and plain objects are made of what these are in the call."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import X, assert_same


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int = 1
    tags: list[Any] = dataclasses.field(default_factory=list)


class Special(Point):
    def __deepcopy__(self, memo: Any) -> int:
        return 7

    def __copy__(self) -> int:
        return 8


def _twice(one: Any) -> list[Any]:
    return [one, one]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: [n, [n, (n, "a")]],
        lambda n: {"a": [n], n: {n}},
        lambda n: (n, Color.RED, torch.float32, None),
        lambda n: Point(n, [n]),
        lambda n: _twice(Point(n, [n])),
        lambda n: [Point(n, [n]), Point(n, [n])],
        lambda n: Special(n),
    ],
)
@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
def test_a_copy_is_of_what_is_given(function: Any, make: Callable[[int], Any]) -> None:
    def f(x: torch.Tensor, value: Any) -> Any:
        made = function(value)
        same = isinstance(made, list) and len(made) > 1 and made[0] is made[1]
        return x + 1, made, made is value, same

    compiled = jitney.compile(f, backend="eager")
    for n in (1, 1, 2, 1):
        assert_same(compiled(X, make(n)), f(X, make(n)))


def test_what_is_distinct_is_copied_twice_and_what_is_one_once() -> None:
    def f(x: torch.Tensor, one: Point, other: Point) -> Any:
        made = copy.deepcopy([one, other])
        made[0].x = 9
        return x * made[1].x

    compiled = jitney.compile(f, backend="eager", fullgraph=True)
    one, other = Point(1), Point(1)
    for pair in ((one, other), (one, one), (one, other)):
        assert_same(compiled(X, *pair), f(X, *pair))


def test_no_break_at_everyday_copies() -> None:
    given = Point(3, [1, {"a": 2}])

    def f(x: torch.Tensor) -> Any:
        made = copy.deepcopy(given)
        made.tags.append(5)
        return x * dataclasses.asdict(given)["x"], made, copy.copy(given)

    assert not explain(f, backend="eager")(X).breaks
    compiled = jitney.compile(f, backend="eager")
    for x in (3, 4):
        given.x = x
        assert_same(compiled(X), f(X))


def test_a_class_that_learns_how_it_is_copied() -> None:
    class Later:
        def __init__(self) -> None:
            self.n = 1

    given = Later()

    def f(x: torch.Tensor) -> Any:
        return x + copy.deepcopy(given).n

    compiled = jitney.compile(f, backend="eager")
    assert_same(compiled(X), X + 1)
    Later.__deepcopy__ = lambda self, memo: Point(5) and type("N", (), {"n": 5})  # type: ignore
    assert_same(compiled(X), X + 5)


def test_a_tensor_is_copied_by_eager() -> None:
    def f(x: torch.Tensor) -> Any:
        return copy.deepcopy([x])[0] + 1

    assert_same(jitney.compile(f)(X), X + 1)


def test_an_object_that_says_itself_how_it_is_copied() -> None:
    class Plain:
        pass

    def f(x: torch.Tensor, given: Any) -> Any:
        return x, copy.copy(given), copy.deepcopy(given)

    given = Plain()
    given.__reduce_ex__ = lambda version: (int, ("3",))  # type: ignore[attr-defined]
    assert jitney.compile(f, backend="eager")(X, given)[1:] == f(X, given)[1:] == (3, 3)


class Reduced:
    """Whose copies the program decides by ``copyreg``."""

    def __init__(self, size: int = 1) -> None:
        self.size = size


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_what_copyreg_is_told_after_a_compile(duplicate: Any) -> None:
    kept = Reduced()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * duplicate(kept).size

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(2)
    assert torch.equal(compiled(x), x)
    copyreg.pickle(Reduced, lambda value: (Reduced, (50,)))
    try:
        assert torch.equal(compiled(x), x * 50)
    finally:
        del copyreg.dispatch_table[Reduced]
    assert torch.equal(compiled(x), x)


def test_what_copyreg_is_told_between_two_copies() -> None:
    kept = Reduced()

    def f(x: torch.Tensor) -> Any:
        before = copy.copy(kept).size
        copyreg.pickle(Reduced, lambda value: (Reduced, (50,)))
        after = copy.copy(kept).size
        del copyreg.dispatch_table[Reduced]
        return x * before, after, copy.deepcopy(kept).size

    compiled, x = jitney.compile(f, backend="eager"), torch.ones(2)
    for _ in range(2):
        found, *sizes = compiled(x)
        assert sizes == [50, 1]
        assert torch.equal(found, x)


class Renamed:
    """Whose attributes have second names, as those of a configuration of transformers."""

    names: dict[str, str] = {"width": "size"}

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, [size]

    def __setattr__(self, key: str, value: Any) -> None:
        super().__setattr__(self.names.get(key, key), value)

    def __getattribute__(self, key: str) -> Any:
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)


class Inner(Renamed):
    names = {"width": "size", "__deepcopy__": "own", "__copy__": "own"}

    def own(self, memo: Any = None) -> Any:
        return Renamed(50)


class Emptied(Renamed):
    """Of which an empty copy is asked for what it has not got."""

    def __getattribute__(self, key: str) -> Any:
        if key == "__setstate__":
            return super().__getattribute__("fill")
        return super().__getattribute__(key)

    def fill(self, state: Any) -> None:
        self.__dict__.update(state, size=70, parts=[])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [Renamed, Inner, Emptied])
def test_a_class_that_says_how_its_attributes_are_read(duplicate: Any, kind: Any) -> None:
    def f(x: torch.Tensor, given: Any) -> Any:
        made, own = duplicate(given), duplicate(kind(4))
        made.width += 1
        found = (made.size, made.width, made.parts, made.parts is given.parts, type(made))
        return x * made.size, *found, own.size, own.parts

    compiled = jitney.compile(f, backend="eager")
    for size in (2, 2, 3):
        assert_same(compiled(X, kind(size)), f(X, kind(size)))
    if kind is Renamed:
        assert not explain(f, backend="eager")(X, kind(2)).breaks
