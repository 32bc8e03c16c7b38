"""Devices that nothing is compiled for."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.errors import Unsupported
from jitney.graph.device_of_graph import refuse_other_devices


def test_a_model_on_meta_runs_eager_and_says_so() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).to("meta")
    x = torch.ones(2, 3, device="meta")
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            made = jitney.explain(model)(x)
        (told,) = made.fallbacks
        assert "nothing is compiled for device meta" in told.reason and made.coverage == 0
    result = jitney.compile(model)(x)
    assert result.shape == (2, 3) and result.is_meta
    result.sum().backward()
    assert model[0].weight.grad.is_meta


def test_a_tensor_on_meta_beside_others_is_no_reason() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, torch.empty(3, device="meta") * 2

    made = jitney.explain(f)(torch.ones(2))
    assert not made.fallbacks and made.coverage == 1
    assert jitney.compile(f)(torch.ones(2))[1].is_meta


def test_any_tensor_of_another_device_is() -> None:
    gm = torch.fx.symbolic_trace(lambda a, b: (a, b))
    first, second, _ = gm.graph.nodes
    first.meta["val"] = torch.ones(2)
    refuse_other_devices(gm)
    second.meta["val"] = _On(torch.ones(2, device="meta"))
    with pytest.raises(Unsupported, match="device xpu"):
        refuse_other_devices(gm)


class _On(torch.Tensor):
    """Says that it is on a device which this torch cannot use."""

    device = torch.device("xpu")

    @staticmethod
    def __new__(cls, value: torch.Tensor) -> _On:
        return torch.Tensor._make_subclass(cls, value)
