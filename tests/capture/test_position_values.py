"""Branches on positions of a symbolic number of places: taken where every size gives one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitney
from jitney.events import log

Tensor = torch.Tensor


def steps_of(positions: Tensor, before: int = 1) -> Tensor:
    """The differences of neighbours, of what ``before`` lies before the first."""
    return torch.diff(positions, prepend=positions[..., :1] - before, dim=-1)


def rise_by_one(x: Tensor) -> Tensor:
    positions = (torch.arange(x.shape[1]) + 3).unsqueeze(0).expand(x.shape[0], -1)
    return ((steps_of(positions) != 1).cumsum(-1)[:, -1] == 0).all()


def rise_by_one_after_the_batch(x: Tensor) -> Tensor:
    return (steps_of(torch.arange(x.shape[0], x.shape[0] + x.shape[1])) == 1).all()


def begin_with_two(x: Tensor) -> Tensor:
    return ((steps_of(torch.arange(x.shape[1]), 2) != 1).cumsum(-1)[-1:] == 0).all()


def are_the_first(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1])[-1] == 3


def have_nothing_before(x: Tensor) -> Tensor:
    return (torch.diff(torch.arange(x.shape[1])) == 1).all()


def written(x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[1])
    positions[1:].add_(x.shape[0])
    return (steps_of(positions) == 1).all()


def of_floats(x: Tensor) -> Tensor:
    return (steps_of(torch.arange(float(x.shape[1]))) == 1).all()


def of_data(x: Tensor) -> Tensor:
    return (x.long() * 0 == 0).all()


KNOWN = [rise_by_one, rise_by_one_after_the_batch]
NOT_KNOWN = [begin_with_two, are_the_first, have_nothing_before, written, of_floats, of_data]


def branching(condition: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: x + 1 if condition(x) else x - 1


@pytest.mark.parametrize("condition", KNOWN + NOT_KNOWN)
def test_a_branch_is_eagers_at_all_sizes(condition: Callable[[Tensor], Tensor]) -> None:
    log.clear()
    program = branching(condition)
    compiled = jitney.compile(program, dynamic=True, backend="eager")
    for rows, places in ((2, 5), (3, 4), (7, 9), (2, 4)):
        x = torch.randn(rows, places)
        assert torch.equal(compiled(x), program(x))
    assert condition in NOT_KNOWN or not log.events("recompile")
    for rows, places in ((3, 1), (4, 1), (1, 5)):
        x = torch.randn(rows, places)
        assert torch.equal(compiled(x), program(x))
    breaks = [event.data["break_kind"] for event in log.events("graph_break")]
    assert set(breaks) == (set() if condition in KNOWN else {"data-dependent-branch"})


def test_the_truth_of_a_tensor_without_values_is_an_error_of_torchs() -> None:
    def program(x: Tensor) -> Tensor:
        same = torch.zeros(x.shape[1], dtype=torch.int64, device="meta") == 0
        return x + 1 if (steps_of(torch.arange(x.shape[1], device="meta")) == 1).all() else x * same

    for f in (program, jitney.compile(program, dynamic=True, backend="eager")):
        with pytest.raises(Exception, match="(?i)meta"):
            f(torch.randn(2, 3))


INTS = st.integers(-3, 3)
POSITIONS = st.tuples(st.sampled_from("add sub more unsqueeze expand first".split()), INTS)
DIFFERENCES = st.tuples(st.just("diff"), st.integers(0, 1))
QUESTIONS = st.tuples(
    st.sampled_from("eq ne cumsum last first all diff".split()), st.integers(0, 1)
)
STEPS = st.builds(
    lambda *parts: [step for part in parts for step in part],
    st.lists(POSITIONS, max_size=3),
    st.lists(DIFFERENCES, min_size=1, max_size=1),
    st.lists(QUESTIONS, max_size=4),
)


def applied(steps: list[tuple[str, int]], rows: int, places: int) -> Tensor:
    """Positions after ``steps``, of which those that do not fit are left out, and then all of
    them in one truth."""
    value = torch.arange(places)
    for name, number in steps:
        if name in ("add", "sub") and value.dtype is not torch.bool:
            value = value + number if name == "add" else value - number
        elif name in ("eq", "ne") and value.dtype is not torch.bool:
            value = value == number if name == "eq" else value != number
        elif name == "more":
            value = value + rows
        elif name == "unsqueeze":
            value = value.unsqueeze(min(max(number, -value.dim() - 1), value.dim()))
        elif name == "all":
            value = value.all()
        elif value.dim():
            value = placed(value, name, number, rows)
    return value.all()


def placed(value: Tensor, name: str, number: int, rows: int) -> Tensor:
    """A step that reads dimensions."""
    dim = min(max(number, -value.dim()), value.dim() - 1)
    if name == "cumsum":
        return value.cumsum(dim)
    if name == "expand":
        return value.unsqueeze(0).expand(rows, *[-1] * value.dim())
    if name == "first":
        return value[..., :1] if number % 2 else value[0]
    if name == "last":
        return value[..., -1]
    if value.dtype is torch.bool:
        return value
    before = value[(slice(None),) * (dim % value.dim()) + (slice(None, 1),)]
    return torch.diff(value, prepend=before - number, dim=dim)


@given(STEPS)
@settings(max_examples=80, deadline=None)
def test_random_questions(steps: list[tuple[str, int]]) -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1 if applied(steps, x.shape[0], x.shape[1]) else x - 1

    jitney.reset()
    compiled: Any = jitney.compile(program, dynamic=True, backend="eager")
    for rows, places in ((2, 5), (3, 4), (6, 9), (3, 1)):
        x = torch.randn(rows, places)
        assert torch.equal(compiled(x), program(x)), steps
