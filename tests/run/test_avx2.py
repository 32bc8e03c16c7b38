"""Models on a processor without 512-bit vectors: its features are taken away."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.cli.workloads import WORKLOADS
from jitney.config import override
from jitney.events import log
from tests.equal import assert_equal_to_eager


@pytest.mark.parametrize("name", ["bert", "unet"])
def test_models_equal_eager(name: str) -> None:
    task = WORKLOADS[name].build("small")
    with override(cpu_features="-avx512", cache=False), torch.no_grad():
        compiled = jitney.compile(task.module)
        log.clear()
        assert_equal_to_eager(lambda: task.step(task.module), lambda: task.step(compiled), ())
    assert log.events("program")
