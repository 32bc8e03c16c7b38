"""Functions of ``torch.jit.script`` are interpreted; where TorchScript differs it runs itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal

if sys.version_info >= (3, 14):
    pytest.skip("TorchScript ends with Python 3.13", allow_module_level=True)

script: Callable[..., Any] = torch.jit.script


def scaled(x: torch.Tensor, n: int, scale: float = 0.5) -> torch.Tensor:
    if x.size(0) > 3:
        return x.sin() * n * scale
    return x.cos() // n


def nested(x: torch.Tensor, n: int) -> torch.Tensor:
    return scripted_scaled(x, n) + torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * n)


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (n**2)  # a fraction in TorchScript, as here, for whole numbers


def asks(x: torch.Tensor, n: int) -> torch.Tensor:
    if torch.jit.is_scripting():
        return x + n
    return x - n


def appends(x: torch.Tensor, kept: list[int]) -> torch.Tensor:
    kept.append(3)
    return x * kept[0]


def by_square(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * (n**2)


def halved(x: torch.Tensor, by: float) -> torch.Tensor:
    return x // by


def calls_power(x: torch.Tensor, n: int) -> torch.Tensor:
    return by_square(x, n) + 1


def calls_converting(x: torch.Tensor, n: int) -> torch.Tensor:
    return halved(x, 2.0) * n


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_plain(x: torch.Tensor, n: int) -> torch.Tensor:
    return doubled(x).sin() + n


scripted_scaled = script(scaled)


def breaks(fn: Callable[..., Any], *args: Any) -> int:
    """Compiled twice called as in eager; how often the graph breaks."""
    compiled = jitney.compile(fn)
    for _ in range(2):
        assert_equal(compiled(*args), fn(*args))
    return len(jitney.explain(fn)(*args).breaks)


@pytest.mark.parametrize("rows", [2, 5])
def test_inside_the_graph(rows: int) -> None:
    outer = script(nested)
    x = torch.randn(rows, 4, requires_grad=True)
    assert breaks(lambda x, n: outer(x + 1, n) * 2, x, 3) == 0
    assert breaks(lambda x, n: scripted_scaled(x, n=n, scale=0.25), x, 2) == 0


def test_plain_functions_that_it_calls() -> None:
    outer = script(calls_plain)
    assert breaks(lambda x: outer(x + 1, 3) * 2, torch.randn(4)) == 0


def test_a_number_that_changes() -> None:
    compiled = jitney.compile(lambda x, n: scripted_scaled(x, n))
    x = torch.randn(5)
    for n in (1, 2, 3, 2):
        assert_equal(compiled(x, n), scripted_scaled(x, n))


@pytest.mark.parametrize("fn", [power, asks, calls_power, calls_converting])
def test_left_to_torchscript(fn: Callable[..., Any]) -> None:
    scripted = script(fn)
    assert breaks(lambda x: scripted(x + 1, 3) * 2, torch.arange(6)) == 1


def test_arguments_that_are_converted_or_copied() -> None:
    taken, x = script(appends), torch.randn(3)
    kept = [2]
    assert breaks(lambda x: taken(x, kept), x) == 1
    assert kept == [2]
    assert breaks(lambda x: scripted_scaled(x, 2, 1), x) == 1


def test_wrong_arguments_raise_as_in_eager() -> None:
    x = torch.randn(3)
    for args in ((x,), (x, 1, 0.5, 2)):
        with pytest.raises(RuntimeError) as expected:
            scripted_scaled(*args)
        with pytest.raises(RuntimeError) as found:
            jitney.compile(lambda *a: scripted_scaled(*a))(*args)
        assert str(found.value) == str(expected.value)


def test_a_traced_function_is_what_was_traced() -> None:
    def by_sign(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    traced = torch.jit.trace(by_sign, (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        compiled = jitney.compile(lambda x: traced(x) * 2)
        assert_equal(compiled(x), (x + 1) * 2)
