"""Loops that a break splits: what is left of them gets shorter, and stays armed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.run import arms
from jitney.run.arms import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")


def test_what_is_left_of_a_loop_is_armed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[Any] = []
    arm = arms.Arms.arm

    def noting(self: Any, *args: Any) -> bool:
        armed.append(args)
        return arm(self, *args)

    monkeypatch.setattr(arms.Arms, "arm", noting)

    def program(x: Tensor, times: Tensor) -> Tensor:
        for time in times:
            x = x * 2 + time
            if time > 100:
                x = x - 1
        return x

    compiled = jitney.compile(program, backend="eager")
    x = torch.ones(3)
    for start in range(6):
        times = torch.arange(start, start + 12)
        assert torch.equal(compiled(x, times), program(x, times))
    before = len(armed)
    for start in range(6, 10):
        times = torch.arange(start, start + 12)
        assert torch.equal(compiled(x, times), program(x, times))
    assert len(armed) - before <= 8  # and not one for each step of each loop


def test_lists_that_get_longer_or_shorter() -> None:
    def program(values: list[Any], x: Tensor) -> Tensor:
        return x * values[0] + values[1]

    compiled = jitney.compile(program, backend="eager")
    x = torch.ones(3)
    for count in (2, 2, 2, 5, 2, 3, 9, 2, 2):
        values = [torch.full((3,), float(count + k)) for k in range(count)]
        assert torch.equal(compiled(values, x), program(values, x))
    for values in ([torch.ones(3)], [], [torch.ones(3), torch.zeros(3)]):
        if len(values) == 2:
            assert torch.equal(compiled(values, x), program(values, x))
            continue
        with pytest.raises(IndexError):
            compiled(values, x)
