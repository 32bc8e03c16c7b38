"""What looks at the frames that call it sees the program's, and attributes that C code hides."""

from __future__ import annotations

import enum
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import assert_same

PAIR = typing.TypeVar("PAIR")


def caller() -> str:
    return sys._getframe(1).f_code.co_name


def of_a_type_variable() -> Any:
    return typing.TypeVar("T").__module__, typing.ParamSpec("P").__module__  # type: ignore[misc]


def of_a_new_type() -> Any:
    return typing.NewType("Number", int).__module__  # type: ignore[misc]


def of_an_enumeration() -> Any:
    return enum.Enum("Kind", "a b").__module__


def of_a_named_tuple() -> Any:
    return typing.NamedTuple("Pair", [("a", int)]).__module__  # type: ignore[misc]


def of_a_helper() -> Any:
    before = caller()
    jitney.graph_break()
    return before, caller(), (lambda: caller())()


def of_a_helper_of_a_helper() -> Any:
    def helper() -> Any:
        return caller(), typing.TypeVar("T").__module__  # type: ignore[misc]

    return helper()


def of_the_stack() -> Any:
    return inspect.stack()[0].function


@pytest.mark.parametrize(
    "asks",
    [
        of_a_type_variable,
        of_a_new_type,
        of_an_enumeration,
        of_a_named_tuple,
        of_a_helper,
        of_a_helper_of_a_helper,
        of_the_stack,
    ],
)
def test_callers_are_eagers(asks: Callable[[], Any]) -> None:
    compiled = jitney.compile(asks, backend="eager")
    for _ in range(2):
        assert compiled() == asks()


def test_attributes_that_only_c_code_sees() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, PAIR.__module__, PAIR.__name__

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        assert_same(compiled(torch.ones(2)), f(torch.ones(2)))


class Pair(tuple[int, ...]):
    note: Any


def test_a_tuple_keeps_its_attributes_over_a_break() -> None:
    def f(x: torch.Tensor) -> Any:
        pair = Pair((1, 2))
        pair.note = x + 1
        jitney.graph_break()
        return pair.note + 1, list(pair), type(pair) is Pair

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        assert_same(compiled(torch.ones(2)), f(torch.ones(2)))
