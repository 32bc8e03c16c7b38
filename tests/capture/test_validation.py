"""Distributions check their arguments within the graph; where a check fails eager raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions as D

import jitney
from jitney.events import log
from tests.equal import assert_equal

GOOD, BAD = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([-1.0, 0.2, 0.3])
CALLS = ((GOOD, GOOD), (GOOD, GOOD * 2), (GOOD, BAD), (GOOD, GOOD + 1), (GOOD, BAD))


@pytest.fixture(autouse=True)
def _validated() -> Iterator[None]:
    """`torch.compile`, once used, turns validation off for the process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


def drawn(distribution: D.Distribution) -> Any:
    sample = distribution.sample()
    return sample, distribution.log_prob(sample)


def written_before(m: torch.Tensor, s: torch.Tensor) -> Any:
    m.add_(1)
    return D.Normal(m, s).rsample(), m


def written_after(m: torch.Tensor, s: torch.Tensor) -> Any:
    normal = D.Normal(m, s)
    m.mul_(2)
    s.add_(1)
    return normal.rsample(), m, s


def caught(m: torch.Tensor, s: torch.Tensor) -> Any:
    try:
        normal = D.Normal(m, s)
    except ValueError as error:
        return m * 2, str(error)
    return normal.entropy(), ""


def drawn_before(m: torch.Tensor, s: torch.Tensor) -> Any:
    drawn = torch.rand(3)
    return drawn, D.Normal(m, s).sample()


def inverted(m: torch.Tensor, s: torch.Tensor) -> Any:
    return drawn(D.Independent(D.LogNormal(m, s), 1))


def unused(m: torch.Tensor, s: torch.Tensor) -> Any:
    D.Normal(m, s)
    return 1


PROGRAMS: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda m, s: drawn(D.Normal(m, s)),
    lambda m, s: drawn(D.Categorical(s)),
    lambda m, s: drawn(D.MixtureSameFamily(D.Categorical(s), D.Normal(m, s))),
    lambda m, s: D.Bernoulli(m).log_prob((s > 0) * s.sign().abs() - (s < 0) * 0.5),
    inverted, written_before, written_after, caught, drawn_before, unused,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_checks_are_eagers(program: Any, dynamic: bool | None) -> None:
    def run(function: Any) -> list[Any]:
        torch.manual_seed(0)
        found: list[Any] = []
        for m, s in CALLS:
            given = m.clone(), s.clone()
            try:
                found.append(function(*given))
            except ValueError as error:
                found.append(str(error))
            found.append((given, torch.rand(2)))
        return found

    log.clear()
    mine = run(jitney.compile(program, dynamic=dynamic))
    if program is not inverted or not torch.__version__.startswith("2.11"):  # a weak reference
        assert not log.events("graph_break")
    assert_equal(mine, run(program))


def test_under_another_backend_a_check_breaks() -> None:
    compiled = jitney.compile(written_before, backend="eager")
    compiled(GOOD.clone(), GOOD)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(GOOD.clone(), BAD)


#: torch's private checks of a tensor, as transformers calls them.
CHECK, CHECK_WITH = (getattr(torch, f"_check_tensor_all{n}") for n in ("", "_with"))


def checked(x: torch.Tensor, y: torch.Tensor) -> Any:
    CHECK(x == y)
    return x + 1


def checked_with(x: torch.Tensor, y: torch.Tensor) -> Any:
    x = x + 1
    total = (x - 1 == y).sum()
    y.add_(1)
    CHECK_WITH(ValueError, total == 3, lambda: f"only {total} of {x.numel()}")
    return x * y


def checked_and_caught(x: torch.Tensor, y: torch.Tensor) -> Any:
    try:
        CHECK((x == y).all(), "not the same")
    except RuntimeError as error:
        return x, str(error)
    return y, ""


def checked_wrongly(x: torch.Tensor, y: torch.Tensor) -> Any:
    CHECK(x)
    return x


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [checked, checked_with, checked_and_caught, checked_wrongly])
def test_checks_that_a_program_asks_for(program: Any, dynamic: bool | None, backend: str) -> None:
    def run(function: Any) -> list[Any]:
        found: list[Any] = []
        for other in (0, 0, 1):
            x, y = torch.arange(3.0), torch.arange(3.0)
            y[0] = other
            try:
                found.append(function(x, y))
            except (ValueError, RuntimeError, TypeError) as error:
                found.append((type(error), str(error)))
            found.append(y)
        return found

    log.clear()
    mine = run(jitney.compile(program, dynamic=dynamic, backend=backend))
    assert bool(log.events("graph_break")) == (backend == "eager" or program is checked_wrongly)
    assert_equal(mine, run(program))
