"""Functions of ``math`` and roots of numbers and sizes that change from call to call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.equal import assert_equal_to_eager

NAMES = ["sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "atan", "expm1"]


def compiles_of(program: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> int:
    """Compares each call with eager's; how often a graph was compiled (one may be cached)."""
    events: list[str] = []
    kinds = ("graph", "eager_graph")
    stop = log.listen(lambda e: events.append(e.kind) if e.kind in kinds else None)
    compiled = jitney.compile(program, **options)
    for args in calls:
        assert_equal_to_eager(program, compiled, args, calls=1)
    stop()
    assert "eager_graph" not in events
    return len(events)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_a_number(name: str) -> None:
    function = getattr(math, name)

    def program(x: Tensor, n: float) -> tuple[Tensor, Tensor, float]:
        y = function(n)
        return x * y, torch.full((2,), y, dtype=torch.float64), y

    x = torch.linspace(-1, 1, 12)
    assert compiles_of(program, [(x, n) for n in (2, 3, 5, 7, 11, 60)]) <= 2
    assert compiles_of(program, [(x, n) for n in (2.25, 3.5, 1e-3, 60.125, 7.75)]) <= 2


def test_roots_of_sizes() -> None:
    def scaled(x: Tensor) -> tuple[Tensor, ...]:
        d = x.shape[1]
        return x / d**0.5, x * d**-0.5, x.bfloat16() / math.sqrt(d), x * (1 / math.sqrt(2 * d))

    rows = [torch.linspace(-1, 1, 3 * d, dtype=torch.float64) for d in (8, 13, 30, 77)]
    calls = [(x.view(3, -1),) for x in rows]
    assert compiles_of(scaled, calls, dynamic=True) <= 1


def test_a_function_of_what_was_computed() -> None:
    def step(p: Tensor, count: int, rate: float) -> tuple[Tensor, float]:
        correction = math.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        turned = 0.5 * (1 + math.cos(math.pi * count / 100)) * rate
        return p * correction - turned, turned

    p = torch.linspace(-1, 1, 12, dtype=torch.float64)
    assert compiles_of(step, [(p, n, 0.1 + n / 7) for n in (2, 3, 5, 7, 11)]) <= 2


@pytest.mark.parametrize("value", [-2.0, -3, 0, 0.0, -0.0, math.inf, math.nan, 1e300, 2**70])
@pytest.mark.parametrize("name", ["sqrt", "log", "exp", "tan"])
def test_numbers_of_which_a_function_raises(name: str, value: float) -> None:
    function = getattr(math, name)

    def program(x: Tensor, n: float) -> Tensor:
        try:
            return x * function(n)
        except (ValueError, OverflowError) as error:
            return x, str(error)  # type: ignore[return-value]

    compiled = jitney.compile(program)
    for n in (2.5, 3.5, type(value)(4), value, 5.5, value, 6):
        args = (torch.linspace(-1, 1, 12), n) if n == n or n is value else None
        if args is not None:
            assert_equal_to_eager(program, compiled, args, calls=1)


def test_a_result_that_is_compared() -> None:
    def program(x: Tensor, n: float) -> Tensor:
        return x * 2 if math.sqrt(n) > 2 else x[: int(math.sqrt(n) * 3)] - math.exp(-n)

    compiled = jitney.compile(program)
    for n in (2.0, 3.0, 4.0, 4.0000001, 9.5, 3.9999, 0.25):
        assert_equal_to_eager(program, compiled, (torch.linspace(-1, 1, 12), n), calls=1)


WHOLE: dict[str, Callable[[Any], int]] = {
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round, "int": int,
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_float_made_whole(name: str) -> None:
    function = WHOLE[name]

    def program(x: Tensor, n: float) -> tuple[Tensor, Tensor, int]:
        k = function(n)
        return x * k, torch.full((2,), k), k

    x = torch.linspace(-1, 1, 12)
    numbers = (9.5, 2.5, 3.5, -4.5, -7.25, 1e6, 12.000000000000002, -0.75, 0.25, 1.0000000000000002)
    assert compiles_of(program, [(x, n) for n in numbers]) <= 4  # 0 and 1 are constants
    compiled = jitney.compile(program)
    for n in (5.5, 6.5):
        compiled(x, n)
    for n, error in ((math.inf, OverflowError), (math.nan, ValueError)):
        with pytest.raises(error):
            compiled(x, n)
    assert type(compiled(x, 7.5)[2]) is int
    assert compiled(x, 1e12)[2] == function(1e12)


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_size(name: str) -> None:
    function = WHOLE[name]

    def program(x: Tensor) -> tuple[Tensor, ...]:
        k = function(x.shape[0] * 0.3)
        rest = x[k:]
        return (
            x[:k] * 2,
            rest.sum(),
            torch.cat([rest, x[:k]]) + 1,
            torch.arange(k),
            x.new_ones(k, 2),
        )

    sizes = (40, 43, 77, 10, 13, 1000, 6, 5, 4, 3, 2)
    assert compiles_of(program, [(torch.arange(float(n)),) for n in sizes]) <= 6
    more = [(torch.arange(float(n)),) for n in (64, 65, 70, 99)]
    assert compiles_of(program, more, dynamic=True) <= 1


def test_whole_roots_and_paddings_of_sizes() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        side, count = math.isqrt(n), math.ceil(n / 8)
        padded = torch.nn.functional.pad(x, (0, count * 8 - n))
        return x[: side * side].view(side, side) @ x[:side], padded.view(count, 8).sum(0), padded

    calls = [(torch.arange(float(n)),) for n in (30, 37, 64, 65, 100, 17, 222)]
    assert compiles_of(program, calls) <= 3


def test_gradients_through_parts_of_sizes() -> None:
    def program(x: Tensor, part: float) -> Tensor:
        k = int(x.shape[0] * part)
        return (x[:k] * x[-k:]).sum() / k

    calls = [(torch.rand(n, requires_grad=True), p) for n, p in ((30, 0.9), (37, 0.7), (64, 0.4))]
    compiles_of(program, [*calls, (torch.rand(50, requires_grad=True), 0.21)])


def test_whole_numbers_that_a_program_looks_at() -> None:
    def program(x: Tensor, n: float) -> Any:
        k = math.ceil(n / 3)
        for _ in range(k):
            x = x + 1
        names = {2: "two", 3: "three"}
        return (x, names.get(k, "many"), f"{k}") if k > 1 else x

    x = torch.ones(3)
    compiles_of(program, [(x, n) for n in (4.5, 5.5, 8.5, 2.5, 7.5, 20.25)])


def test_a_whole_root_that_raises() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        try:
            return x * math.isqrt(n)
        except ValueError:
            return x - 1

    x = torch.ones(3)
    compiles_of(program, [(x, n) for n in (17, 30, 99, -4, 101, -7, 1)])
