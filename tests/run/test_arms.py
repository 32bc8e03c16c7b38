"""When entries are armed, and when that is given up."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.run import arms, dispatch

pytestmark = pytest.mark.skipif(
    not arms.is_supported(), reason="layouts differ on this interpreter"
)


NUMBERS = list(range(5000))
step = 0


def largest(x: torch.Tensor) -> torch.Tensor:
    return x * max(NUMBERS)


def test_what_is_too_long_for_a_native_program_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = jitney.compile(largest, backend="eager")
    tried = []
    original = arms.arm_guards

    def counted(*args: object) -> object:
        tried.append(original(*args))  # type: ignore[arg-type]
        return tried[-1]

    monkeypatch.setattr(arms, "arm_guards", counted)
    for number in range(8):
        monkeypatch.setitem(globals(), "step", number)  # names in a dict that changes are looked up
        assert compiled(torch.ones(1)).item() == 4999
    assert tried[-1] is None and tried.count(None) == 1
    NUMBERS[-1] = 9999
    assert compiled(torch.ones(1)).item() == 9999


class Cleared(arms.Arms):
    """What another thread clears whenever something is armed."""

    _live = property(lambda self: (), lambda self, live: None)  # type: ignore[assignment]


def test_another_thread_may_clear_what_is_being_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Arms", Cleared)
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(1)).item() == 2
