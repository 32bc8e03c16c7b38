"""Optimizers with ``fused=True``: their steps are captured, and run as torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, fused=True),
    "adam, lists of all": lambda p: torch.optim.Adam(
        p, lr=0.01, betas=(0.3, 0.9), amsgrad=True, maximize=True, fused=True
    ),
    "adam, lr a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3, amsgrad=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), weight_decay=0.1, fused=True),
    "sgd, momentum": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True, fused=True
    ),
    "sgd, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, weight_decay=0.1, maximize=True, fused=True
    ),
}


def model_of(dtype: torch.dtype) -> torch.nn.Module:
    """A convolution whose weight lies channels last, and a bias of 67 elements."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 67, 3, dtype=dtype)
    model.weight.data = model.weight.data.to(memory_format=torch.channels_last)
    return model


def stepped(
    compile_step: Callable[..., Any], name: str, dtype: torch.dtype, scale: float | None = None
) -> list[torch.Tensor]:
    """Parameters, gradients and states after four steps. With a ``scale`` as a GradScaler hands it
    over, the third one finds an infinite gradient."""
    model = model_of(dtype)
    optimizer: Any = OPTIMIZERS[name](model.parameters())

    def step() -> torch.Tensor:
        optimizer.step()
        return next(model.parameters()).detach() * 2  # goes with the step into one graph

    step = compile_step(step)
    random = torch.Generator().manual_seed(1)
    doubled = []
    for at in range(4):
        for p in model.parameters():
            p.grad = torch.empty_like(p).normal_(generator=random) * (scale or 1)
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(float(at == 2))
        doubled.append(step())
    states = [optimizer.state[p] for p in model.parameters()]
    kept = [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*(p.detach() for p in model.parameters()), *gradients, *kept, *doubled]


@pytest.mark.parametrize("scale", [None, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_equals_eager(name: str, dtype: torch.dtype, scale: float | None) -> None:
    eager = stepped(lambda step: step, name, dtype, scale)
    log.clear()
    compiled = stepped(lambda step: jitney.compile(step, fullgraph=True), name, dtype, scale)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0)
    assert [t.stride() for t in compiled] == [t.stride() for t in eager]
    reasons = {e.data["reason"] for e in log.events("eager_graph")}
    kind = type(OPTIMIZERS[name](model_of(dtype).parameters())).__name__
    assert reasons == {f"a fused {kind} step runs as torch's own kernel"}


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_sizes_may_be_symbols(name: str) -> None:
    eager = stepped(lambda step: step, name, torch.float32)
    compiled = stepped(
        lambda step: jitney.compile(step, dynamic=True, fullgraph=True), name, torch.float32
    )
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
