"""Programs as users write them, compiled for a GPU that Triton's interpreter stands in for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import jitney
from tests.equal import assert_equal
from tests.pretend_gpu import pretend_gpu


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    return pretend_gpu(monkeypatch)


def test_training_runs_through_kernels_of_a_gpu(kernels: list[object]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    compiled = jitney.compile(layer)
    weights = torch.randn(16)
    for rows in (4, 6, 7):
        x = torch.randn(rows, 8)
        found, wanted = (
            torch.autograd.grad((f(x) - weights).square().sum(), list(layer.parameters()))
            for f in (compiled, layer)
        )
        assert_equal(found, wanted)
    assert kernels
