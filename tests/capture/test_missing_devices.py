"""Devices that the machine lacks: what eager refuses is refused where the program handles it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

CALLS: dict[str, Any] = {
    "to": lambda x: x.to("cuda"),
    "cuda": lambda x: x.cuda(),
    "zeros": lambda x: torch.zeros(2, device="cuda"),
    "like": lambda x: torch.zeros_like(x, device="cuda"),
    "new": lambda x: x.new_zeros(2, device="cuda"),
    "module": lambda x: torch.nn.Linear(2, 2).to("cuda")(x),
    "arange": lambda x: torch.arange(3, device="cuda"),
    "another": lambda x: x.to("xpu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_error_is_the_programs_to_handle(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            return CALLS[name](y)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            return y, type(error).__name__

    compiled = jitney.compile(f)
    for _ in range(2):
        assert_equal(compiled(torch.ones(2)), f(torch.ones(2)))


def test_it_leaves_what_was_entered() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.device("cuda"), torch.no_grad():
            return torch.zeros(2)

    for call in (f, jitney.compile(f)):
        with pytest.raises((RuntimeError, AssertionError)):
            call(torch.ones(2))
        assert torch.ones(2).device.type == "cpu" and torch.is_grad_enabled()
