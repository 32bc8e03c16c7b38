"""What is taken for a constant holds the objects of this call, not those of the first."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest

import jitney


class Given:
    pass


MAKING: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda it: list[it], lambda made: made.__args__[0]),
    (lambda it: int | list[it], lambda made: made.__args__[1].__args__[0]),
    (lambda it: typing.Annotated[int, it], lambda made: made.__metadata__[0]),
    (lambda it: Callable[[it], int], lambda made: made.__args__[0]),
    (staticmethod, lambda made: made.__func__),
    (property, lambda made: made.fget),
    (lambda it: inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, default=it), lambda made:
     made.default),
]  # fmt: skip


@pytest.mark.parametrize(("make", "held"), MAKING)
def test_what_is_made_holds_what_is_given(make: Any, held: Any) -> None:
    def f(it: Any) -> Any:
        made = make(it)
        jitney.graph_break()
        return made

    def own() -> Any:
        it = Given()
        return make(it), it

    compiled, compiled_own = (
        jitney.compile(f, backend="eager"),
        jitney.compile(own, backend="eager"),
    )
    for _ in range(3):
        it = Given()
        assert held(compiled(it)) is it
        made, it = compiled_own()
        assert held(made) is it
