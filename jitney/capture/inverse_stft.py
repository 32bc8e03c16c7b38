"""``torch.istft``, which refuses windows that leave samples out: the graph checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import polyfills
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
    result = interpreter.torch_call(function, *values, **keywords)  # refuses what it does not take
    reach = interpreter.call_python(polyfills.windows_reach, tuple(values), keywords, None)
    assert_true(interpreter, reach)
    return result
