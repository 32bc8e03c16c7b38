"""Functions under ``functools.lru_cache`` give a compiled caller what eager would find."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import X

CALLS: list[int] = []
STATE = {"scale": 2}


@functools.lru_cache
def scale(n: int) -> int:
    return n * STATE["scale"]


@functools.lru_cache(maxsize=2)
def table(n: int, *, start: float = 0.0) -> torch.Tensor:
    return torch.arange(n) + start


@functools.cache
def counted(n: int) -> int:
    CALLS.append(n)
    return n + len(CALLS)


@functools.cache
def noise(n: int) -> torch.Tensor:
    return torch.rand(n)


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Owner:
    factor = 3

    @functools.cache  # noqa: B019
    def scaled(self, n: int) -> int:
        return n * self.factor


def graphs(log: list[torch.fx.GraphModule]) -> Any:
    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        log.append(gm)
        return gm.forward

    return backend


@pytest.fixture(autouse=True)
def fresh() -> None:
    for function in (scale, table, counted, noise, fibonacci, Owner.scaled):
        function.cache_clear()  # type: ignore[attr-defined]
    CALLS.clear()
    STATE["scale"] = 2


def test_a_result_stays_what_it_was() -> None:
    compiled = jitney.compile(lambda x: x * scale(3), fullgraph=True)
    torch.testing.assert_close(compiled(X), X * 6)
    assert scale.cache_info().currsize == 1
    STATE["scale"] = 5
    torch.testing.assert_close(compiled(X), X * 6)
    scale.cache_clear()
    torch.testing.assert_close(compiled(X), X * 15)


def test_what_eager_has_cached_is_used() -> None:
    scale(3)
    STATE["scale"] = 5
    torch.testing.assert_close(jitney.compile(lambda x: x * scale(3))(X), X * 6)


def test_what_the_frame_changed_before() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        STATE["scale"] = 7
        return x * scale(3)

    torch.testing.assert_close(jitney.compile(f)(X), X * 21)
    assert scale(3) == 21


def test_a_tensor_is_the_cached_one() -> None:
    compiled = jitney.compile(lambda x: (x + table(3, start=1.0), table(3, start=1.0)))
    _, first = compiled(X)
    assert first is table(3, start=1.0) is compiled(X)[1]
    table(4), table(5)
    assert compiled(X)[1] is table(3, start=1.0) is not first


def test_more_results_than_the_cache_holds() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return sum((x + table(n, start=1.0).sum() for n in (2, 3, 4, 5)), x * table(4)[1])

    seen: list[torch.fx.GraphModule] = []
    compiled = jitney.compile(f, backend=graphs(seen), fullgraph=True)
    expected = f(X)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), expected)
    assert len(seen) == 1
    table.cache_clear()
    torch.testing.assert_close(compiled(X), expected)


def test_effects_come_once() -> None:
    compiled = jitney.compile(lambda x: x + counted(3))
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X + 4)
    assert CALLS == [3]


def test_random_numbers_are_drawn_once_and_in_order() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + torch.rand(3), noise(2)

    torch.manual_seed(0)
    expected = f(X)
    noise.cache_clear()
    compiled = jitney.compile(f)
    torch.manual_seed(0)
    got = compiled(X)
    torch.testing.assert_close(got, expected)
    assert compiled(X)[1] is got[1]


def test_recursion_and_methods() -> None:
    seen: list[torch.fx.GraphModule] = []
    owner = Owner()
    compiled = jitney.compile(
        lambda x, o: x * fibonacci(20) + o.scaled(2), backend=graphs(seen), fullgraph=True
    )
    torch.testing.assert_close(compiled(X, owner), X * 6765 + 6)
    owner.factor = 10
    torch.testing.assert_close(compiled(X, owner), X * 6765 + 6)
    torch.testing.assert_close(compiled(X, Owner()), X * 6765 + 6)


def test_tensors_as_arguments_leave_it_to_eager() -> None:
    @functools.lru_cache
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = jitney.compile(lambda x: double(x) + 1)
    torch.testing.assert_close(compiled(X), X * 2 + 1)
    assert double.cache_info().currsize == 1
    assert double(X) is double(X)


def test_what_runs_natively_needs_no_break() -> None:
    search = functools.lru_cache(re.search)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if search("a+", "caat") else x

    torch.testing.assert_close(jitney.compile(f, fullgraph=True)(X), X + 1)


def test_sizes_that_differ_from_call_to_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * scale(x.shape[0])).view(doubled(shape=x.shape))

    @functools.lru_cache
    def doubled(*, shape: tuple[int, ...]) -> list[int]:
        return [shape[0] // 2, 2, *shape[1:]]

    seen: list[torch.fx.GraphModule] = []
    compiled = jitney.compile(f, backend=graphs(seen), fullgraph=True)
    for rows in (2, 4, 6, 8, 4):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(seen) == 2
    STATE["scale"] = 5  # what is in the cache stays what it was
    torch.testing.assert_close(compiled(x), f(x))
