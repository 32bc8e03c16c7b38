"""Objects of C code and of subclasses of numbers: another call's are another value."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import functools
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitney
from jitney.capture.compare import fully_equal
from jitney.capture.options import CaptureOptions
from tests.capture.run_capture import X, assert_same, check

DATES = (datetime.date(2021, 1, 1), datetime.date(2019, 1, 1))


class Text(str):
    """A text that is not exactly `str`."""


class Number(int):
    """A number that is not exactly `int`."""


@functools.singledispatch
def rank(value: Any) -> int:
    return 1


@rank.register
def _(value: list) -> int:  # type: ignore[type-arg]
    return 3


Use = Callable[[Any, Any], Any]
CASES: list[tuple[str, Use, tuple[Any, Any]]] = [
    ("date compared", lambda x, d: x * (d > datetime.date(2020, 1, 1)), DATES),
    ("date as key", lambda x, d: x * {DATES[0]: 1, DATES[1]: 2}[d], DATES),
    ("date as text", lambda x, d: (x + 1, str(d)), DATES),
    ("decimal", lambda x, d: x * float(d + 1), (decimal.Decimal(1), decimal.Decimal(2))),
    ("numpy number", lambda x, n: x * n, (np.float64(1), np.float64(2))),
    ("numpy float32", lambda x, n: (x, f"{n:.2f}"), (np.float32(1), np.float32(2))),
    ("numpy index", lambda x, n: x * [1, 2, 3][n], (np.int64(1), np.int64(2))),
    ("numpy bool", lambda x, n: x * 2 if n else x, (np.bool_(True), np.bool_(False))),
    ("array's sum", lambda x, a: x * float(a.sum()), (np.ones(2), np.ones(3))),
    ("array's item", lambda x, a: x * a[0], (np.ones(2), np.full(2, 3.0))),
    ("array's length", lambda x, a: x * len(a), (np.ones(2), np.ones(3))),
    ("bytearray", lambda x, a: x * a[0], (bytearray(b"\x01"), bytearray(b"\x02"))),
    ("array.array", lambda x, a: x * a[0], (array.array("i", [1]), array.array("i", [2]))),
    ("keys", lambda x, d: x * len(d), ({1: 2}.keys(), {1: 2, 3: 4}.keys())),
    ("items", lambda x, d: x * sum(v for _, v in d), ({1: 2}.items(), {1: 5}.items())),
    ("mapping proxy", lambda x, d: x * d["a"],
     (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2}))),
    ("namespace", lambda x, n: x * 2 if n == types.SimpleNamespace(a=1) else x,
     (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2))),
    ("match", lambda x, m: (x + 1, m.group(0)), (re.match("a", "a"), re.match("b", "b"))),
    ("getter", lambda x, g: x * g([5, 6, 7]), (operator.itemgetter(0), operator.itemgetter(2))),
    ("text", lambda x, s: x * 2 if s == "a" else x, (Text("a"), Text("b"))),
    ("text as key", lambda x, s: x * {"a": 1, "b": 2}[s], (Text("a"), Text("b"))),
    ("number", lambda x, n: x[n], (Number(0), Number(1))),
    ("dispatch", lambda x, v: (x * rank(v), rank(1), rank([])), ([], 1)),
    ("counter", lambda x, c: x * c["a"], (collections.Counter("a"), collections.Counter("aa"))),
]  # fmt: skip


@pytest.mark.parametrize(("use", "values"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_value_of_each_call_counts(use: Use, values: tuple[Any, Any]) -> None:
    compiled, x = jitney.compile(use), torch.arange(3.0)
    for value in (*values, *values):
        assert_same(compiled(x, value), use(x, value))


def test_what_is_not_looked_into_does_not_break() -> None:
    def applied(x: torch.Tensor, shift: Any) -> Any:
        return (shift(x) if shift else x), isinstance(shift, functools.partial), shift is None

    check(applied, X, functools.partial(torch.add, 1), options=CaptureOptions(fullgraph=True))


def test_equal_values_of_other_looks_differ() -> None:
    assert fully_equal(Text("a"), Text("a")) and not fully_equal("a", Text("a"))
    assert not fully_equal(decimal.Decimal("1.0"), decimal.Decimal(1))
    assert not fully_equal(np.float32(0.0), np.float32(-0.0))
    assert not fully_equal(np.float64(0.0), np.float64(-0.0))
    assert fully_equal(np.float64("nan"), np.float64("nan"))


UFUNCS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x / np.sqrt(x.shape[-1]),
    lambda x: np.sqrt(2) * x,
    lambda x: x * -(np.log(float(10)) / 3),
    lambda x: (x + float(np.lcm(4, 6)), np.lcm(4, 6), np.isfinite(1.0)),
    lambda x: x + 1 if np.greater(np.exp(1), 2) else x - 1,
    lambda x: (x * np.prod(x.shape), np.prod(x.shape, dtype=np.int32), np.mean([1, 2.5])),
    lambda x: (x * np.float32(0.1), np.int16(3) - x, np.linalg.norm([3.0, 4.0]) * x),
    lambda x: (x ** np.int8(-2), x.clamp(max=np.float16(1.5)), x[np.int64(1)], x / np.uint64(3)),
    lambda x: torch.full_like(x.int(), np.float32(2.5)) + np.int64(2**40),
]


@pytest.mark.parametrize("f", UFUNCS)
def test_numpy_functions_of_numbers(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, X)
    found, expected = jitney.compile(f, fullgraph=True)(X), f(X)
    assert_same(found, expected)
    assert type(found) is type(expected)


def test_numpy_functions_of_numbers_that_change() -> None:
    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        return x * np.sqrt(n)

    compiled = jitney.compile(f)
    for n in (2.0, 3.0, 5.0, 7, 2.0):
        assert_same(compiled(X, n), f(X, n))


def test_what_numpy_warns_of_is_eagers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * np.log(0.0)

    compiled = jitney.compile(f)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            assert_same(compiled(X), f(X))
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            compiled(X)


def test_numbers_that_torch_takes_for_others_are_eagers() -> None:
    for number in (np.bool_(True), np.complex64(2 + 1j), np.uint64(2**63)):
        compiled = jitney.compile(lambda x, n=number: x.int() * n)
        assert_same(compiled(X), X.int() * number)


@pytest.mark.parametrize("f", [lambda x: x * np.mean([]), lambda x: x + np.float16(1e6)])
def test_what_numpy_warns_of_in_a_list_is_eagers(f: Callable[[torch.Tensor], Any]) -> None:
    compiled = jitney.compile(f)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="empty slice|overflow"):
            assert_same(compiled(X), f(X))


def test_numpy_functions_of_python_code_run_at_every_call() -> None:
    scale = [2.0]
    scaled = np.frompyfunc(lambda v: np.float64(v * scale[0]), 1, 1)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * scaled(2.0)

    compiled = jitney.compile(f)
    for scale[0] in (2.0, 3.0):
        assert_same(compiled(X), f(X))


def test_a_function_without_cells_has_no_closure() -> None:
    def f(x: torch.Tensor) -> Any:
        def inner() -> int:
            return 1

        return x + (inner.__closure__ is None), inner

    found, expected = jitney.compile(f)(X), f(X)
    assert_same(found[0], expected[0])
    assert found[1].__closure__ is None
