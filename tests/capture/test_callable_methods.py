"""Special methods that are no functions: objects that are called, or that give what is."""

from __future__ import annotations

import functools
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest

import jitney

told: list[Any] = []


class Teller:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> int:
        told.append((self.name, len(args)))
        return 2


class Told:
    __len__ = Teller("len")
    __getitem__ = Teller("item")
    __int__ = Teller("int")
    __add__ = Teller("add")
    __eq__ = Teller("equal")  # type: ignore[assignment]
    __hash__ = Teller("hash")  # type: ignore[assignment]
    __contains__ = Teller("contains")
    __index__ = functools.partial(Teller("index"), 1)
    __bool__ = staticmethod(lambda: bool(told.append("bool")))
    __iter__ = staticmethod(lambda: iter([1, 2]))
    __str__ = staticmethod(lambda: "text")


ASKING: list[Callable[[Any], Any]] = [
    len,
    bool,
    int,
    hash,
    list,
    str,
    lambda it: it[1],
    lambda it: it + 1,
    lambda it: it == 1,
    lambda it: [it] == [1],
    lambda it: 5 in it,
    lambda it: [1, 2, 3][it],
    lambda it: f"{it}",
]


@pytest.mark.parametrize("ask", ASKING)
def test_methods_that_are_objects(ask: Any) -> None:
    def f(it: Any) -> Any:
        return ask(it)

    def outcome(function: Any) -> Any:
        told.clear()
        return function(Told()), list(told)

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        assert outcome(compiled) == outcome(f)


def test_mocks_count_their_calls() -> None:
    def f() -> Any:
        mock = unittest.mock.MagicMock()
        asked = len(mock), int(mock), bool(mock), mock[1] is mock[2], 5 in mock, list(mock)
        counts = mock.__len__.call_count, mock.__getitem__.call_count, mock.__iter__.call_count
        return asked, counts

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        assert compiled() == f()
