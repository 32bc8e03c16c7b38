"""Compiled optimizer steps: parameters' states and gradients are checked by the native program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.capture.arm_guards import Arm, arm_guards
from jitney.run import arms
from jitney.run.arms import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="layouts differ on this interpreter")

KINDS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, foreach=True),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Arm]:
    """What is armed from now on."""
    found: list[Arm] = []

    def noting(*args: Any) -> Arm | None:
        arm = arm_guards(*args)
        if arm is not None:
            found.append(arm)
        return arm

    monkeypatch.setattr(arms, "arm_guards", noting)
    return found


def optimizer_of(kind: Callable[..., Any], count: int = 5) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.linspace(-1, 1, 4 + i % 2)) for i in range(count)]
    for i, p in enumerate(parameters):
        p.grad = torch.full_like(p, i + 1.0)
    return kind(parameters)


def same(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    pairs = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_nothing_of_the_states_is_left_to_python(kind: Any, made: list[Arm]) -> None:
    optimizer = optimizer_of(kind)
    step = jitney.compile(optimizer.step, backend="eager")
    for _ in range(4):
        step()
    assert not [g for g in made[-1].residual if ".state" in str(g.source)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_states_that_are_others(kind: Any) -> None:
    compiled, eager = optimizer_of(kind), optimizer_of(kind)
    step = jitney.compile(compiled.step, backend="eager")
    for count in range(12):
        step()
        eager.step()
        assert same(compiled, eager)
        for optimizer in (compiled, eager):
            first = optimizer.param_groups[0]["params"][count % 5]
            state = optimizer.state[first]
            if count % 3 == 1:
                optimizer.state[first] = {k: v * 2 for k, v in state.items()}
            elif count % 3 == 2:
                state.update({k: v.clone() for k, v in state.items()})
