"""Gradients of what is computed with complex numbers of Python's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitney
from jitney.diagnostics.report import report
from jitney.events import log

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exponent": lambda a, b: torch.exp(a + 1j * b).real.sum(),
    "product": lambda a, b: (a * 2j + b).abs().sum(),
    "quotient": lambda a, b: (a / (1 + 2j)).imag.sum() + b.sum(),
    "divided": lambda a, b: ((1 + 2j) / (a + 3)).imag.sum() * b.sum(),
    "complex": lambda a, b: (torch.complex(a, b) * 1j).real.sum(),
    "power": lambda a, b: ((a + 1j * b) ** 2).real.sum(),
    "transform": lambda a, b: (torch.fft.rfft(a * b) * 2j).abs().sum(),
    "of no dimension": lambda a, b: (a.sum() * 2j + b.sum()).abs(),
}


def check(name: str, dynamic: bool | None, device: str) -> None:
    program = PROGRAMS[name]
    compiled = jitney.compile(program, dynamic=dynamic)
    log.clear()
    for size in (3, 5, 8):
        a, b = torch.linspace(-1, 1, size, device=device), torch.ones(size, device=device)
        found = []
        for run in (program, compiled):
            x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
            result = run(x, y)
            result.backward()
            found.append([result.detach(), x.grad, y.grad])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert not report(log.events()).fallbacks


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_products_with_numbers(name: str, dynamic: bool | None) -> None:
    check(name, dynamic, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_on_a_gpu(name: str, dynamic: bool | None) -> None:
    check(name, dynamic, "cuda")
