"""Numbers of other classes: beside symbols, and what conversions ask of them."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pytest
import torch

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


def test_a_changing_int_beside_numpy_numbers() -> None:
    """NumPy's own numbers decide what class and what precision the result has."""
    np = pytest.importorskip("numpy")

    def scaled(x: torch.Tensor, n: int, a: Any) -> Any:
        made = 1 / a + n, n - a, a // n, n < a, np.array([1, 2]) * n
        return x + 1, *made, [type(m) for m in made]

    compiled = jitney.compile(scaled, recompile_limit=64)
    for a in (np.float32(0.3), np.float64(0.3), np.int64(4), np.float32(0.7)):
        for n in (3, 4, 5, 7):
            given = torch.ones(2), n, a
            assert repr(compiled(*given)) == repr(scaled(*given))


def test_numpy_numbers_are_formatted_by_themselves() -> None:
    """``format`` of a float32 gives the digits of a float64, ``str`` does not."""
    np = pytest.importorskip("numpy")

    def texts(x: torch.Tensor, a: Any) -> Any:
        return f"{a}", format(a), f"{a!s}", f"{a!r:>9}", f"{a} {a!r}", x + 1

    compiled = jitney.compile(texts, recompile_limit=64)
    for a in (np.float32(0.1), np.float16(0.1), np.float64(0.1), np.complex64(0.1j), np.int8(3)):
        x = torch.ones(2)
        assert compiled(x, a)[:5] == texts(x, a)[:5]
