"""What a frame asks of torch's settings is what they are in the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


def _turn(name: str) -> Callable[[bool], None]:
    return lambda on: setattr(CUDNN, name, on)


def _tf32(on: bool) -> None:
    MATMUL.allow_tf32 = on


def _precision(on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")


def _warning_only(on: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=on)


@pytest.mark.parametrize(
    ("ask", "turn"),
    [
        (lambda: MATMUL.allow_tf32, _tf32),
        (lambda: CUDNN.enabled, _turn("enabled")),
        (lambda: CUDNN.benchmark, _turn("benchmark")),
        (lambda: CUDNN.deterministic, _turn("deterministic")),
        (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
        (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
        (
            torch.backends.cuda.mem_efficient_sdp_enabled,
            torch.backends.cuda.enable_mem_efficient_sdp,
        ),
        (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (lambda: torch.get_float32_matmul_precision() == "high", _precision),
        (torch.is_deterministic_algorithms_warn_only_enabled, _warning_only),
        (lambda: torch.get_num_threads() > 1, lambda on: torch.set_num_threads(1 + on)),
    ],
)
def test_a_setting_is_guarded_where_it_is_asked_for(
    ask: Callable[[], bool], turn: Callable[[bool], Any]
) -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if ask() else x - 1

    before, compiled = ask(), jitney.compile(asks, backend="eager", fullgraph=True)
    try:
        for on in (before, before, not before, not before, before):
            turn(on)
            assert compiled(torch.zeros(1)).item() == (1 if on else -1)
    finally:
        turn(before)
