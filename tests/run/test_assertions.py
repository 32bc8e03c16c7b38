"""``torch._assert_async`` inside a graph raises what eager raises, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.capture.run_capture import assert_same

Function = Callable[[Tensor], Tensor]


def of_a_reduction(x: Tensor) -> Tensor:
    torch._assert_async((x > -9).all(), "too small")
    return x * 2


def of_a_number(x: Tensor) -> Tensor:
    y = x * 2
    torch._assert_async(y.sum())
    return y


def twice(x: Tensor) -> Tensor:
    torch._assert_async((x > -9).all(), "too small")
    torch._assert_async((x * 2 != 0).any(), "zeros")
    return x.exp()


def of_many(x: Tensor) -> Tensor:
    torch._assert_async(x > -9)
    return x + 1


def beside_random_numbers(x: Tensor) -> Tensor:
    y = x + torch.rand(3)
    torch._assert_async((x > -9).all(), "too small")
    return y


FUNCTIONS = [of_a_reduction, of_a_number, twice, of_many, beside_random_numbers]


def _outcome(call: Function, x: Tensor) -> Any:
    torch.manual_seed(0)
    try:
        return call(x)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_an_assertion_is_in_the_graph(f: Function, backend: str, dynamic: bool) -> None:
    compiled = jitney.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for value in (1.0, 0.0, -10.0, float("nan"), 1.0):
        x = torch.full((3,), value)
        found, expected = _outcome(compiled, x), _outcome(f, x)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_assertion_is_a_check_of_the_program() -> None:
    log.clear()
    jitney.compile(twice)(torch.ones(3))
    programs = [e.data["program"] for e in log.events("program")]
    assert sum(b.kind == "check" for p in programs for b in p.buffers) == 2


def test_gradients_beside_an_assertion() -> None:
    compiled = jitney.compile(twice, fullgraph=True)
    gradients = []
    for call in (compiled, twice):
        x = torch.ones(3, requires_grad=True)
        call(x).sum().backward()
        gradients.append(x.grad)
    assert_same(*gradients)
    bad = torch.full((3,), -10.0, requires_grad=True)
    assert _outcome(compiled, bad) == "too small"


def test_a_written_input_beside_an_assertion() -> None:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        torch._assert_async((x > -9).all(), "too small")
        x.mul_(2)
        return x + 1

    compiled = jitney.compile(f, fullgraph=True)
    for start in (1.0, 3.0):
        a, b = torch.full((3,), start), torch.full((3,), start)
        assert_same((compiled(a), a), (f(b), b))
    assert _outcome(compiled, torch.full((3,), -20.0)) == "too small"


FACTORED: dict[str, Function] = {
    "cholesky": lambda x: torch.linalg.cholesky(x) * 2,
    "inv": lambda x: torch.linalg.inv(x).exp(),
    "solve": lambda x: torch.linalg.solve(x, x + 1),
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0] - 1,
    "matrix_power": lambda x: torch.linalg.matrix_power(x, -2),
    "beside random numbers": lambda x: torch.linalg.inv(x) + torch.rand(3),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FACTORED)
def test_a_matrix_that_cannot_be_factored(name: str, dynamic: bool) -> None:
    f = FACTORED[name]
    compiled = jitney.compile(f, fullgraph=True, dynamic=dynamic)
    for x in (torch.eye(3), torch.zeros(3, 3), -torch.eye(3), torch.stack([torch.eye(3)] * 2)):
        found, drawn = _outcome(compiled, x), torch.rand(2)
        expected = _outcome(f, x)
        assert type(found) is type(expected) and torch.equal(drawn, torch.rand(2))
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
