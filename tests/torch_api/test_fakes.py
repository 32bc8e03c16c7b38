"""Fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
