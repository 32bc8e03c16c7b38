"""Checks of values by `torch.distributions` become checks within the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitney import torch_api
from jitney.capture.build_resume import original_code

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def assert_valid(interpreter: Interpreter, found: torch.Tensor) -> bool:
    """Assumes that parameters or a sample lie where they may, if that is what ``found`` tells:
    where they do not the graph leaves no trace, and eager raises at the program's line. Not on a
    GPU, which would not recover."""
    frame, recorder = interpreter.frames[-1], interpreter.recorder
    if original_code(frame.code) not in torch_api.VALIDATIONS or not interpreter.options.checks:
        return False
    if recorder.checkpoint:  # computed again, when nobody could run the frame anew
        return False
    if found.device.type != "cpu" or found.numel() != 1 or id(found) not in recorder.nodes:
        return False
    recorder.call(torch.ops.aten._assert_async.default, (found,), {})
    return True
