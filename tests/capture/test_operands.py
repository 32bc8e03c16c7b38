# ruff: noqa: UP031
"""Operators and builtins ask the methods of a program in CPython's order, each once, and take of
their answers what CPython takes."""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import assert_same

told: list[Any] = []


class Told:
    """Keeps a number, and tells of what it is asked."""

    def __init__(self, n: int) -> None:
        self.n = n

    def tell(self, name: str) -> int:
        told.append((name, self.n))
        return self.n


class Adds(Told):
    def __add__(self, other: Any) -> Any:
        return "add", self.tell("add")

    def __radd__(self, other: Any) -> Any:
        return "radd", self.tell("radd")


class AddsToo(Adds):
    """Overrides nothing."""


class AddsOtherwise(Adds):
    def __radd__(self, other: Any) -> Any:
        return "other radd", self.tell("other radd")


class Greater(Told):
    def __gt__(self, other: Any) -> Any:
        return self.tell("gt") > (other.n if isinstance(other, Told) else other)


class Silent(Told):
    """Asked, it has no answer."""

    def __eq__(self, other: object) -> Any:
        self.tell("eq")
        return NotImplemented

    def __lt__(self, other: Any) -> Any:
        self.tell("lt")
        return NotImplemented

    def __radd__(self, other: Any) -> Any:
        self.tell("radd")
        return NotImplemented

    def __iadd__(self, other: Any) -> Any:
        self.tell("iadd")
        return NotImplemented

    def __divmod__(self, other: Any) -> Any:
        self.tell("divmod")
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Divides(Told):
    def __rdivmod__(self, other: Any) -> Any:
        return "rdivmod", self.tell("rdivmod")

    def __rpow__(self, other: Any) -> Any:
        return "rpow", self.tell("rpow")

    def __rmod__(self, other: Any) -> Any:
        return "rmod", self.tell("rmod")

    def __floor__(self) -> Any:
        return self.tell("floor")


class Unequal(Told):
    def __ne__(self, other: object) -> bool:
        return bool(self.tell("ne") % 2)


class Equal(Told):
    def __eq__(self, other: object) -> bool:
        return bool(self.tell("eq") % 2)

    __hash__ = None  # type: ignore[assignment]


class Number(float):
    def __radd__(self, other: Any) -> Any:
        return "radd"


def in_place(left: Any, right: Any) -> Any:
    before = left
    left += right
    return left, before is left


ASKED: dict[str, Callable[[Any, int], Any]] = {
    "a subclass that overrides nothing": lambda x, n: Adds(n) + AddsToo(n + 1),
    "a subclass that overrides": lambda x, n: Adds(n) + AddsOtherwise(n + 1),
    "of one class": lambda x, n: AddsToo(n) + AddsToo(n + 1),
    "swapped, of one class": lambda x, n: Greater(n) < Greater(2),
    "swapped, with a number": lambda x, n: 2 < Greater(n),
    "no answer to ==": lambda x, n: (Silent(n) == Silent(2), Silent(n) != 3, [Silent(n)] == [1]),
    "no answer to <": lambda x, n: Silent(n) < Silent(2),
    "no answer to +": lambda x, n: [1] + Silent(n),
    "no answer to +=": lambda x, n: in_place(Silent(n), 1),
    "+= of a list": lambda x, n: in_place([1], Silent(n)),
    "+= of a list and an iterator": lambda x, n: in_place([1], (v for v in (x, n))),
    "|= of a dict": lambda x, n: operator.ior({"a": n}, collections.UserDict(b=n)),
    "divmod": lambda x, n: divmod(7, Divides(n)),
    "divmod of two": lambda x, n: divmod(Silent(n), Divides(n)),
    "no answer to divmod": lambda x, n: divmod(Silent(n), 2),
    "pow": lambda x, n: (pow(2, Divides(n)), 2 ** Divides(n)),
    "floor": lambda x, n: math.floor(Divides(n)),  # type: ignore[call-overload]
    "a text formats": lambda x, n: ("%s" % Divides(n))[:1],
    "!= by the left one's ==": lambda x, n: Equal(n) != Unequal(n),
    "!= by its own": lambda x, n: Unequal(n) != Equal(n),
    "a tensor takes a number": lambda x, n: x + Number(n),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_methods_are_asked_in_order_and_once(ask: Callable[[Any, int], Any]) -> None:
    def asked(x: torch.Tensor, n: int) -> Any:
        y = x + 1
        try:
            return y, ask(x, n)
        except TypeError as error:
            return y, str(error)

    compiled, x = jitney.compile(asked, backend="eager"), torch.arange(3.0)
    for n in (1, 2, 3):
        told.clear()
        want = asked(x, n)
        right = told.copy()
        told.clear()
        assert_same(compiled(x, n), want)
        assert told == right


@pytest.mark.parametrize("symbol", ["+", "<"])
def test_objects_of_the_program_are_read_anew(symbol: str) -> None:
    texts = {"+": "lambda x: (x + 1, a + b)", "<": "lambda x: (x + 1, a < b)"}
    classes = {"+": (Adds, AddsToo), "<": (Greater, Greater)}
    a, b = (cls(n) for n, cls in enumerate(classes[symbol], 1))
    asked = eval(texts[symbol], {"a": a, "b": b})
    compiled, x = jitney.compile(asked, backend="eager"), torch.ones(2)
    for n in (1, 3, 0):
        a.n = n
        assert_same(compiled(x), asked(x))


def answering(name: str, answer: Any) -> Any:
    """An object of which one special method answers so."""
    return type("Answering", (), {name: lambda *_: answer})()


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "a hash too large": lambda n: hash(answering("__hash__", (1 << 70) + n)),
    "a hash of -1": lambda n: hash(answering("__hash__", -1)),
    "no hash": lambda n: hash(answering("__hash__", "1")),
    "a negative length": lambda n: len(answering("__len__", -n)),
    "a length that is true": lambda n: len(answering("__len__", n > 0)),
    "a text for a length": lambda n: len(answering("__len__", "3")),
    "the truth of a number": lambda n: bool(answering("__bool__", n)),
    "the truth of a negative length": lambda n: 1 if answering("__len__", -n) else 2,
    "a number for a text": lambda n: str(answering("__str__", n)),
    "a number for a repr": lambda n: f"{answering('__repr__', n)!r}",
    "what is not ASCII": lambda n: ascii(answering("__repr__", "é" * n)),
    "a number for a format": lambda n: f"{answering('__format__', n):3}",
    "a text for a number": lambda n: int(answering("__int__", "3")),
    "an int for a float": lambda n: float(answering("__float__", n)),
    "a float by its index": lambda n: float(answering("__index__", n)),
    "no iterator": lambda n: list(answering("__iter__", [n])),
}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_are_what_c_code_takes(ask: Callable[[Any], Any]) -> None:
    def asked(x: torch.Tensor, n: int) -> Any:
        y = x + 1
        try:
            return y, ask(n)
        except (TypeError, ValueError) as error:
            return y, type(error), str(error)

    compiled, x = jitney.compile(asked, backend="eager"), torch.ones(2)
    for n in (1, 2, 5):
        assert_same(compiled(x, n), asked(x, n))


ERRORS: dict[str, Callable[[Any], Any]] = {
    "bool of two": lambda n: bool(n, n),  # type: ignore[call-arg]
    "len of two": lambda n: len([n], [n]),  # type: ignore[call-arg]
    "getattr of four": lambda n: getattr(n, "real", n, n),  # type: ignore[call-overload]
    "getattr by a number": lambda n: getattr(n, n, n),
    "hasattr by a number": lambda n: hasattr(n, n),
    "setattr by a number": lambda n: setattr(test_errors_are_eagers, n, n),
    "max of nothing": lambda n: max([], key=lambda v: v),
    "max with a default": lambda n: max(n, n, default=n, key=lambda v: v),  # type: ignore
    "no iterable": lambda n: [*n],
    "no mapping": lambda n: {**n},
    "unpacking": lambda n: [a for a, b in [n]],
    "a number called with": lambda n: print(*n),
    "classes by their modules": lambda n: collections.deque() < collections.OrderedDict(),
}


@pytest.mark.parametrize("fail", ERRORS.values(), ids=ERRORS.keys())
def test_errors_are_eagers(fail: Callable[[Any], Any]) -> None:
    def failing(x: torch.Tensor, n: int) -> Any:
        y = x + 1
        try:
            return y, fail(n)
        except (TypeError, ValueError) as error:
            return y, type(error), str(error)

    compiled, x = jitney.compile(failing, backend="eager"), torch.ones(2)
    assert_same(compiled(x, 3), failing(x, 3))


def test_symbols_are_not_made_into_larger_numbers_than_they_hold() -> None:
    def large(x: torch.Tensor, n: int) -> Any:
        return x * n, (n << 70) + n, n * (1 << 65), hash(n << 70)

    compiled, x = jitney.compile(large, backend="eager"), torch.ones(2)
    for n in (3, 4, 5):
        assert_same(compiled(x, n), large(x, n))
