"""Breaks are told at the program's own line, whatever of ours or torch's ran below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.errors import Unsupported


def asks_any(x: torch.Tensor) -> Any:
    return any(v > 0 for v in x - 2)


def orders(x: torch.Tensor) -> Any:
    return sorted([0, 1, 2], key=lambda i: x[i])


def chooses(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def sets_the_stance(x: torch.Tensor) -> Any:
    with jitney.set_stance("default"):
        return x + 1


def compiles(x: torch.Tensor) -> Any:
    return jitney.compile(lambda y: y + 1, backend="eager")(x)


def infers(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return x + 1


@pytest.mark.parametrize("function", [asks_any, orders, chooses, sets_the_stance, compiles, infers])
def test_a_break_below_the_program_is_told_at_its_line(function: Callable[..., Any]) -> None:
    x, place = torch.ones(3), f"{__file__}:{function.__code__.co_firstlineno + 1}"
    told = jitney.explain(function)(x)
    assert told.breaks and {broken.where for broken in told.breaks} == {place}
    with pytest.raises(Unsupported) as error:
        jitney.compile(function, fullgraph=True)(x)
    assert error.value.where == place


def test_a_compile_within_a_compiled_function_is_one_row() -> None:
    (row,) = jitney.explain(compiles)(torch.ones(3)).breaks
    assert row.reason == "jitney.api.compile runs eager" and row.count == 1
