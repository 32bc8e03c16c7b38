"""`torch.istft` looks at its window: the graph checks it, and eager raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log


def plain(x: Tensor, window: Tensor) -> Tensor:
    return torch.istft(x, 16, 4, window=window) * 2


def method(x: Tensor, window: Tensor) -> Tensor:
    return x.istft(16, window=window, length=30)


def narrow(x: Tensor, window: Tensor) -> Tensor:
    return torch.istft(x, n_fft=16, hop_length=3, win_length=12, window=window[:12], center=False)


def no_window(x: Tensor, window: Tensor) -> Tensor:
    return torch.istft(x, 16, normalized=True)


def answer(function: Any, x: Tensor, window: Tensor) -> Any:
    x = x.clone().requires_grad_()
    try:
        result = function(x, window)
    except RuntimeError as error:
        return str(error)[-40:]
    result.square().sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [(plain, None), (plain, True), (method, None), (narrow, True), (no_window, None)],
)
def test_windows_that_leave_samples_out_are_refused(function: Any, dynamic: bool | None) -> None:
    poor = torch.zeros(16)
    poor[:2] = 1
    compiled = jitney.compile(function, dynamic=dynamic)
    log.clear()
    refused = 0
    for frames, window in ((9, torch.hamming_window(16)), (9, poor), (12, torch.ones(16))):
        generator = torch.Generator().manual_seed(frames)
        x = torch.randn(2, 9, frames, dtype=torch.cfloat, generator=generator)
        given, wanted = answer(compiled, x, window), answer(function, x, window)
        refused += isinstance(wanted, str)
        if isinstance(wanted, str):
            assert given == wanted
        else:
            torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)
    assert not log.events("graph_break")
    assert (refused > 0) == (function is not no_window)


def test_with_another_backend_it_is_called_between_graphs() -> None:
    x = torch.randn(9, 9, dtype=torch.cfloat)
    log.clear()
    given = jitney.compile(plain, backend="eager")(x, torch.ones(16))
    torch.testing.assert_close(given, plain(x, torch.ones(16)))
    assert "window" in log.events("graph_break")[0].data["reason"]
