"""Optimizer steps on a GPU: counts of steps on the CPU are one function, the rest a few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

pytestmark = pytest.mark.gpu

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adam, capturable": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_equals_eager(name: str, mode: str | None) -> None:
    def stepped(compile_step: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(n, 8, device="cuda")) for n in range(1, 9)]
        optimizer: Any = OPTIMIZERS[name](parameters)
        step = compile_step(optimizer.step)
        for _ in range(6):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
        states = [v for p in parameters for v in optimizer.state[p].values()]
        return [*(p.detach() for p in parameters), *(v for v in states if v is not None)]

    eager = stepped(lambda step: step)
    log.clear()
    compiled = stepped(lambda step: jitney.compile(step, mode=mode, fullgraph=True))
    torch.testing.assert_close(compiled, eager, rtol=2e-5, atol=2e-6)
    if name.startswith("adamw"):  # the first step's counts are constants, and no kernel reads them
        assert not log.events("lowered")[-1].data["extern"]
    assert bool(log.events("eager_graph")) == ("fused" in name)
