"""Compiled optimizer steps: parameters' states and gradients are checked by the native program."""

from __future__ import annotations

import gc
import weakref
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


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_nothing_of_the_gradients_is_left_to_python(kind: Any, made: list[Arm]) -> None:
    compiled, eager = optimizer_of(kind, 20), optimizer_of(kind, 20)
    step = jitney.compile(compiled.step, backend="eager")
    for count in range(12):
        for optimizer in (compiled, eager):
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.full_like(p, float(count))  # another one in each step
        step()
        eager.step()
        assert same(compiled, eager)
    assert len(made) <= 3 and not made[-1].residual


def change_of(optimizer: torch.optim.Optimizer, number: int) -> None:
    """Something about gradients that a compiled step has not met."""
    one, other, *_ = optimizer.param_groups[0]["params"][1::2]
    with torch.no_grad():
        match number:
            case 0:
                one.grad = None
            case 1:
                one.grad = other.grad = torch.full_like(one, 3.0)
            case 2:
                one.grad = one.detach()
            case 3:
                one.grad = optimizer.state[other].get("exp_avg", other.detach())
            case 4:
                both = torch.arange(8.0)
                one.grad, other.grad = both[:5], both[3:]
            case 5:
                one.grad = torch.arange(10.0)[::2]
            case 6:
                del optimizer.state[one]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_gradients_that_are_others(kind: Any, number: int) -> None:
    compiled, eager = optimizer_of(kind), optimizer_of(kind)
    step = jitney.compile(compiled.step, backend="eager")
    for count in range(8):
        for optimizer in (compiled, eager):
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.full_like(p, float(count))
            if count in (4, 6):
                change_of(optimizer, number)
        step()
        eager.step()
        assert same(compiled, eager)


def test_gradients_that_only_a_backward_pass_has_seen() -> None:
    torch.manual_seed(1)
    modules = [torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(12)]) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    compiled, eager = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in modules)
    step = jitney.compile(compiled.step, backend="eager")
    for count in range(30):
        for module, optimizer in zip(modules, (compiled, eager), strict=True):
            optimizer.zero_grad()
            module(torch.full((2, 3), float(count))).square().sum().backward()
        step()
        eager.step()
        assert same(compiled, eager)
    gradients = [weakref.ref(p.grad) for p in modules[0].parameters() if p.grad is not None]
    compiled.zero_grad()
    gc.collect()
    assert not any(r() is not None for r in gradients)
