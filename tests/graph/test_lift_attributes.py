"""What torch's capture leaves with its graphs: tensors that an optimizer's step writes to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitney.events import log

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=False),
    "adamw on lists": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


def trained(name: str, compile_step: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The parameters and the state after some steps; the rate changes on the way."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
    optimizer = OPTIMIZERS[name](parameters)
    step = compile_step(optimizer.step)
    for i in range(5):
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.param_groups[0]["lr"] *= 0.9
        if i == 3:
            optimizer.load_state_dict(optimizer.state_dict())
        step()
    return parameters, optimizer.state_dict()["state"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_compiled_under_torchs_capture(name: str) -> None:
    torch._dynamo.reset()
    log.clear()
    got = trained(name, lambda step: torch.compile(step, backend="jitney"))
    assert not log.events("eager_graph")
    torch.testing.assert_close(got, trained(name, lambda step: step))
    gone = weakref.ref(got[0][0])
    del got
    gc.collect()
    assert gone() is None


def test_a_tensor_that_is_written_to_is_not_a_constant() -> None:
    torch._dynamo.reset()
    total = torch.nn.Parameter(torch.zeros(3))
    torch._dynamo.mark_static_address(total)

    @torch.compile(backend="jitney")
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            total.add_(x)
        return (x * total).sum()

    for n in range(1, 4):
        f(torch.ones(3)).backward()
        torch.testing.assert_close(total.detach(), torch.full((3,), float(n)))
    assert total.grad is not None
    torch.testing.assert_close(total.grad, torch.full((3,), 3.0))


def test_a_truth_value_of_sizes_fills_a_tensor() -> None:
    """torch's capture gives it as it is, ours as what a guard holds."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = torch.full((2,), x.shape[0] >= 5)
        return filled, torch.full((2,), x.shape[0] > 3, dtype=torch.float32), x + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="jitney", dynamic=True)
    for n in (3, 4, 5, 6, 3):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), f(x))
