"""Operators whose operands are of different kinds (tensors, symbols, objects of the program,
builtin containers): CPython's methods in CPython's order, each asked once, behind breaks too."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

asked: list[str] = []


class Tagged(int):
    """An int that is asked first when it stands on the right."""

    def __radd__(self, other: Any) -> Any:
        asked.append("Tagged.__radd__")
        return ("radd", int(other))


class Refuses:
    """Declines everything, counts how often it was asked."""

    count = 0
    __hash__ = None  # type: ignore[assignment]

    def _asked(self, name: str, answer: Any) -> Any:
        asked.append(name)
        self.count += 1
        return answer

    def __add__(self, other: Any) -> Any:
        return self._asked("__add__", NotImplemented)

    def __radd__(self, other: Any) -> Any:
        return self._asked("__radd__", NotImplemented)

    def __iadd__(self, other: Any) -> Any:
        return self._asked("__iadd__", NotImplemented)

    def __contains__(self, item: Any) -> Any:
        return self._asked("__contains__", item)

    def __eq__(self, other: Any) -> Any:
        return self._asked("__eq__", other)


class Seven(list[int]):
    def __iter__(self) -> Any:
        asked.append("Seven.__iter__")
        return iter([7])


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except TypeError as error:
        return str(error)


def counted(function: Callable[[Refuses], Any]) -> Any:
    """What ``function`` of an object gives, and how often that was asked."""
    made = Refuses()
    return outcome(function, made), made.count


Program = Callable[[torch.Tensor, int], Any]
PROGRAMS: dict[str, Program] = {
    "number + derived int": lambda x, n: n + Tagged(3),
    "size + derived int": lambda x, n: x.shape[0] + Tagged(3),
    "tensor + object": lambda x, n: outcome(operator.add, x, Refuses()),
    "object + tensor": lambda x, n: outcome(operator.add, Refuses(), x),
    "tensor += object": lambda x, n: outcome(operator.iadd, x.clone(), Refuses()),
    "object += tensor": lambda x, n: outcome(operator.iadd, Refuses(), x),
    "a tensor says whether it is in": lambda x, n: counted(lambda o: x.sum() in o),
    "a tensor says whether it is equal": lambda x, n: counted(lambda o: o != x.sum()),
    "lists of objects and numbers": lambda x, n: counted(lambda o: [o] != [n]),
    "list + object": lambda x, n: counted(lambda o: [1] + o),
    "list += object": lambda x, n: counted(lambda o: operator.iadd([1], o)),
    "object + list": lambda x, n: counted(lambda o: o + [1]),
    "tuple * tensor": lambda x, n: outcome(operator.mul, (1, 2), x),
    "list += derived list": lambda x, n: operator.iadd([1], Seven([3])),
    "deque + object": lambda x, n: outcome(operator.add, deque([1]), Refuses()),
    "stars of a number": lambda x, n: outcome(lambda: [*n]),  # type: ignore[misc]
    "stars of an object": lambda x, n: outcome(lambda: {**Refuses()}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    program = PROGRAMS[name]

    def run(x: torch.Tensor, n: int) -> Any:
        return x + 1, program(x, n)

    compiled = jitney.compile(run, backend="eager")
    for n in (2, 3, 4):  # from the second on a symbol
        told = []
        for call in (run, compiled):
            asked.clear()
            told.append((repr(call(torch.ones(n), n)), list(asked)))
        assert told[0] == told[1]
