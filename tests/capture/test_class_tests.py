"""``isinstance`` and ``issubclass`` where metaclasses, protocols and ABCs have a say."""

from __future__ import annotations

import abc
import typing
from typing import Any

import pytest
import torch

import jitney
from jitney.errors import Unsupported
from tests.capture.run_capture import X, same_as_eager

LOG: list[str] = []


class Asking(type):
    subclass = False

    def __instancecheck__(cls, value: Any) -> Any:
        LOG.append("instance")
        return getattr(value, "flag", [])

    def __subclasscheck__(cls, other: Any) -> bool:
        LOG.append("subclass")
        return Asking.subclass


class Asked(metaclass=Asking):
    pass


class Flagged:
    def __init__(self, flag: bool) -> None:
        self.flag = flag


@typing.runtime_checkable
class Going(typing.Protocol):
    def go(self) -> None: ...


QUESTIONS = {
    "instance": lambda value: isinstance(value, Asked),
    "in a tuple": lambda value: isinstance(value, (int, (str, Asked))),
    "after the answer": lambda value: isinstance(value, (Flagged, Asked)),
    "in a union": lambda value: isinstance(value, int | Asked),
    "itself": lambda value: isinstance(Asked(), Asked),
    "subclass": lambda value: issubclass(Flagged, Asked),
    "subclass in a tuple": lambda value: issubclass(Flagged, (int, Asked)),
    "match": lambda value: _match(value),
    "tensor": lambda value: isinstance(torch.ones(1), Asked),
}


def _match(value: Any) -> bool:
    match value:
        case Asked():
            return True
    return False


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_metaclass_is_asked_in_each_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = QUESTIONS[name]
    compiled = jitney.compile(lambda x, v: (x + 1, ask(v)), backend="eager", fullgraph=True)
    value = Flagged(False)
    for value.flag, Asking.subclass in ((False, False), (True, True), (False, True), (True, True)):
        LOG.clear()
        expected, told = ask(value), list(LOG)
        LOG.clear()
        assert compiled(X, value)[1] == expected
        assert told == LOG
    monkeypatch.setattr(Asking, "__instancecheck__", lambda cls, value: "other")
    monkeypatch.setattr(Asking, "__subclasscheck__", lambda cls, value: False)
    assert compiled(X, value)[1] == ask(value)


def test_a_protocol_looks_at_the_object() -> None:
    compiled = jitney.compile(lambda x, v: (x + 1, isinstance(v, Going)), backend="eager")
    value: Any = Flagged(False)
    assert not compiled(X, value)[1]
    value.go = print
    assert compiled(X, value)[1]
    with pytest.raises(Unsupported):
        jitney.compile(lambda x, v: isinstance(v, Going), fullgraph=True)(X, value)
    whole = jitney.compile(lambda x: (x + 1, isinstance(3, Going)), fullgraph=True)
    assert not whole(X)[1]


class Slotted:
    __slots__ = ("place",)


@typing.runtime_checkable
class Placed(typing.Protocol):
    place: int


def test_a_protocol_looks_at_slots() -> None:
    def program(compile: Any) -> Any:
        compiled = compile(lambda x, v: (x + 1, isinstance(v, (str, int | Placed))))
        value: Any = Slotted()
        seen = [compiled(X, value)]
        value.place = 3
        seen.append(compiled(X, value))
        del value.place
        return [*seen, compiled(X, value)]

    same_as_eager(program)


@pytest.mark.parametrize("value", [3, "text", None])
def test_a_protocol_that_names_data(value: Any) -> None:
    same_as_eager(lambda compile: compile(lambda x, v: (x + 1, isinstance(v, Placed)))(X, value))


REGISTERED = {
    "of a tuple": lambda value, a: isinstance(value, (bytes, (str, a))),
    "of a union": lambda value, a: isinstance(value, a | list),
    "a union in a tuple": lambda value, a: isinstance(value, (bytes, a | list)),
    "of a class": lambda value, a: issubclass(type(value), a),
    "of several": lambda value, a: issubclass(type(value), (dict, (str, a))),
    "itself": lambda value, a: isinstance(value, a),
}


@pytest.mark.parametrize("name", REGISTERED)
@pytest.mark.parametrize("kind", [int, float, Flagged, torch.Tensor, torch.nn.Parameter])
def test_what_is_registered_later(name: str, kind: type) -> None:
    ask = REGISTERED[name]

    def program(compile: Any) -> Any:
        class Abstract(abc.ABC):  # noqa: B024 - others are registered
            pass

        made = {Flagged: (True,), torch.Tensor: ([1.0],), torch.nn.Parameter: (torch.ones(1),)}
        value = kind(*made.get(kind, (1,)))
        compiled = compile(lambda x: (x + 1, ask(value, Abstract)))
        seen = [compiled(X)]
        Abstract.register(kind)
        return [*seen, compiled(X), compiled(X)]

    same_as_eager(program)
