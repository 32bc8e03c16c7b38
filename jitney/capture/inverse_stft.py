"""``torch.istft``, which refuses windows that leave samples out: the graph checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture
from jitney.capture.validation import assert_true, can_assert

if TYPE_CHECKING:
    from jitney.capture.frame import Frame
    from jitney.capture.interpret import Interpreter


def call_inverse_stft(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Calls it, and checks its windows, where a graph may check (`can_assert`)."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    spectrum = values[0] if values else keywords.get("input")
    if not isinstance(spectrum, torch.Tensor) or not can_assert(interpreter, spectrum):
        raise BreakCapture("data-dependent", "istft depends on the values of its window")
    # Before the check, which takes arguments that torch accepts.
    result = interpreter.torch_call(function, *values, **keywords)
    reach = interpreter.call_python(windows_reach, tuple(values), keywords, None)
    assert_true(interpreter, reach)
    return result


def windows_reach(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Whether the windows of an inverse short-time Fourier transform, squared and added up where
    its frames lie, reach every sample of the result, as `torch.istft` asks: a truth value."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if window is None:
        window = input.real.new_ones(width)
    left = (n_fft - width) // 2
    window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    frames = input.shape[-1]
    samples = n_fft + hop * (frames - 1)
    squares = window.square().repeat(1, frames, 1)
    sums = torch.ops.aten.unfold_backward(squares, (1, samples), 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = samples - start if length is None else start + length
    return sums[:, start:end].abs().min() > 1e-11
