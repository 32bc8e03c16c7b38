"""Branches on tensors that depend on no input are taken; on all others the graph breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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


@pytest.mark.parametrize("f", [random_branch, written_branch, input_branch])
def test_what_may_differ_on_another_run_breaks(f: Callable[..., torch.Tensor]) -> None:
    end = capture(f, X).exit
    assert isinstance(end, Break)
    assert end.kind == "data-dependent-branch"


def test_many_values_are_eagers_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.arange(3) > 0 else x - 1

    assert isinstance(capture(f, X).exit, Break)
