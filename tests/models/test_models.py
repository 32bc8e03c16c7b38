"""Every model works: equal to eager, captured whole, and lowered to our kernels."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.cli.workloads import WORKLOADS
from jitney.diagnostics import render
from jitney.diagnostics.report import Report, report
from jitney.events import log
from tests.equal import assert_equal

BREAKS = 1  # graph breaks a model may have
LOWERED = {"lstm": 0.8}  # its two layers are calls of torch's own (docs/cpu.md); others 0.98


def check(name: str, dtype: torch.dtype = torch.float32, **options: object) -> Report:
    """Two steps of the small size against eager and a float64 run; returns what compiling did."""
    jitney.reset()
    eager, ours = (WORKLOADS[name].build("small", dtype) for _ in range(2))
    exact = WORKLOADS[name].build("small", torch.float64)
    log.clear()
    compiled = jitney.compile(ours.module, **options)
    for _ in range(2):
        expected, truth = eager.step(eager.module), exact.step(exact.module)
        assert_equal(ours.step(compiled), expected, truth)
    return report(log.events())


@pytest.mark.parametrize("name", WORKLOADS)
def test_model_works(name: str) -> None:
    made = check(name)
    text = render.as_text(made)
    assert sum(b.count for b in made.breaks) <= BREAKS, text
    assert made.coverage >= 0.95, text
    assert made.lowered, text
    assert made.lowered_share >= LOWERED.get(name, 0.98), text
    assert len(made.recompiles) <= 1, text  # ViT stores its problem type on the first call


@pytest.mark.parametrize("name", ["bert", "llama", "nanogpt", "vit"])
def test_model_works_in_bfloat16(name: str) -> None:
    check(name, torch.bfloat16)


@pytest.mark.parametrize("name", ["bert", "resnet50", "unet", "llama-decode"])
def test_model_works_frozen(name: str) -> None:
    check(name, options={"freeze": True})
