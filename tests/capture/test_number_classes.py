"""Numbers of other classes: beside symbols, and what conversions ask of them."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pytest

import jitney


class Whole(int):
    pass


class Indexed(int):
    def __index__(self) -> int:
        return 42


class Real(float):
    pass


OTHERS: list[Any] = [complex(42), decimal.Decimal(42), Whole(42), Real(42)]
QUESTIONS: list[Callable[[Any, Any], Any]] = [
    lambda other, n: (other == n, n == other, other != n, n != other),
    lambda other, n: (n in [other], other in (n,), n in [[other]]),
    lambda other, n: ([n] == [other], (n,) == (other,), [(n,)] != [(other,)]),
    lambda other, n: ([other].count(n), {other: 1}.get(n), {n: 1}.get(other)),
]


@pytest.mark.parametrize("ask", QUESTIONS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_symbol_equals_what_the_number_equals(other: Any, ask: Any) -> None:
    def f(n: int) -> Any:
        return ask(other, n)

    compiled = jitney.compile(f, backend="eager", dynamic=True)
    for n in (3, 7, 42, 7):
        assert compiled(n) == f(n)


def test_conversions_ask_the_first_method_that_there_is() -> None:
    def f(n: int) -> Any:
        number = Indexed(n)
        return int(number), float(number), complex(number)

    assert jitney.compile(f, backend="eager")(7) == f(7)
