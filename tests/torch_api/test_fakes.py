"""Fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import fake_tensor

from jitney.torch_api import fakes


def test_asking_for_a_shape_draws_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where an op that is run on zeros to learn its shape moves the generator."""
    run, drawn = fake_tensor.run_fallback_kernel, []

    def drawing(*given: Any) -> Any:
        drawn.append(torch.default_generator.seed())
        return run(*given)

    monkeypatch.setattr(fake_tensor, "run_fallback_kernel", drawing)
    state = torch.default_generator.get_state()
    with fakes.new_fake_mode():
        torch.binomial(torch.ones(3), torch.ones(3))
    assert drawn
    assert torch.equal(torch.default_generator.get_state(), state)


def test_rules_of_operators_of_higher_order_are_followed() -> None:
    class Twice(HigherOrderOperator):
        def __call__(self, x: torch.Tensor) -> Any:
            return super().__call__(x)

    twice = Twice("twice_of_test_fakes")
    twice.fallthrough(torch._C.DispatchKey.AutogradCPU)

    @twice.py_impl(fake_tensor.FakeTensorMode)
    def _(mode: Any, x: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.cat([x, x])

    with fakes.new_fake_mode():
        assert twice(torch.ones(3)).shape == (6,)
