"""Branches on tensors that depend on no input are taken; on all others the graph breaks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.capture.result import Break, Return
from tests.capture.run_capture import capture, check

X = torch.randn(2, 3)


def test_a_branch_on_positions_is_taken() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])[None]
        steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
        if ((steps != 1).cumsum(-1)[:, -1] == 0).all():
            return x + 1
        return x - 1

    check(f, X)
    assert isinstance(capture(f, X).exit, Return)


def random_branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.rand([]) < 0.5 else x - 1


def written_branch(x: torch.Tensor) -> torch.Tensor:
    flags = torch.zeros(2)
    flags[:1].copy_(x[0, :1])
    return x + 1 if flags.sum() > 0 else x - 1


def input_branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if (torch.arange(3) + x).sum() > 0 else x - 1


def written_draw(x: torch.Tensor) -> torch.Tensor:
    draw = torch.rand([])
    dropped = draw < 0.0
    draw.sub_(2)
    return x + 1 if dropped else x - 1


def written_comparison(x: torch.Tensor) -> torch.Tensor:
    dropped = torch.rand([]) < 0.0
    dropped.logical_not_()
    return x + 1 if dropped else x - 1


BRANCHES = [random_branch, written_branch, input_branch, written_draw, written_comparison]


@pytest.mark.parametrize("f", BRANCHES)
def test_what_may_differ_on_another_run_breaks(f: Callable[..., torch.Tensor]) -> None:
    end = capture(f, X).exit
    assert isinstance(end, Break)
    assert end.kind == "data-dependent-branch"


def test_many_values_are_eagers_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.arange(3) > 0 else x - 1

    assert isinstance(capture(f, X).exit, Break)


@pytest.mark.parametrize("limit", [0.0, 0, -0.5, 1.0, 2])
@pytest.mark.parametrize("compare", [operator.lt, operator.ge, operator.gt, operator.le, torch.lt])
def test_a_layer_never_or_always_dropped(compare: Callable[..., Any], limit: float) -> None:
    """The number is drawn all the same: what is drawn next is eager's."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if compare(torch.rand([]), limit):
                x = x * 2
            x = x + torch.rand(3)
        return x

    torch.manual_seed(0)
    expected, state = f(X), torch.get_rng_state()
    torch.manual_seed(0)
    torch.testing.assert_close(jitney.compile(f)(X), expected)
    assert torch.equal(torch.get_rng_state(), state)
    below = compare in (operator.lt, operator.ge, torch.lt)
    known = limit <= 0 if below else limit >= 1
    assert isinstance(capture(f, X).exit, Return if known else Break)
