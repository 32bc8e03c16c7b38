"""Floats under torch's capture: it gives them as tensors, here they are numbers of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitney.events import log

PROGRAMS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "factor": lambda x, p: x * p + 1,
    "arithmetic": lambda x, p: x / (p + 1.5) * (2 * p - 0.5) - -p,
    "temperature": lambda x, p: (x / max(p, 1e-5)).softmax(-1) + min(0.25, p),
    "dropout": lambda x, p: torch.nn.functional.dropout(x, p % 1 if p < 0 else p, True),
    "branch": lambda x, p: x + p if p > 0.25 else x * p,
    "filled": lambda x, p: x.masked_fill(x > 0, p).clamp(-3 * p, p),
}


def both(f: Any, compiled: Any, p: float) -> tuple[Any, Any]:
    """What they give for ``p``, and its gradient; the class of what they raise."""
    found = []
    for function in (compiled, f):
        torch.manual_seed(0)
        x = torch.linspace(-2, 2, 12).view(3, 4).requires_grad_()
        try:
            y = function(x, p)
            y.sum().backward()
            found.append((y, x.grad))
        except (RuntimeError, ZeroDivisionError) as error:
            found.append((torch.zeros(0), type(error).__mro__[-4:]))
    return found[0], found[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_changing_floats_stay_in_the_graph(name: str) -> None:
    torch._dynamo.reset()
    log.clear()
    f = PROGRAMS[name]
    compiled = torch.compile(f, backend="jitney", fullgraph=True)
    for p in (0.1, 0.2, 0.35, 0.45, 0.1):
        got, expected = both(f, compiled, p)
        torch.testing.assert_close(got, expected)
    assert not log.events("eager_graph")


@pytest.mark.parametrize("name", ["factor", "arithmetic", "filled"])
def test_floats_that_no_symbol_stands_for(name: str) -> None:
    torch._dynamo.reset()
    f = PROGRAMS[name]
    compiled = torch.compile(f, backend="jitney")
    for p in (0.1, 0.2, 0.3, float("nan"), float("inf"), 1e39, -1e300, 0.0, -0.0, 0.4):
        got, expected = both(f, compiled, p)
        torch.testing.assert_close(got[0], expected[0], equal_nan=True)


def test_arithmetic_that_python_refuses() -> None:
    torch._dynamo.reset()

    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        return x * (1 / p)

    compiled = torch.compile(f, backend="jitney")
    for p in (0.1, 0.2, 0.3, 0.0, 0.4):
        got, expected = both(f, compiled, p)
        torch.testing.assert_close(got[0], expected[0])
