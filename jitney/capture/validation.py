"""Checks of values, by `torch.distributions` or as the program asks torch for them, become checks
within the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.build_resume import original_code

if TYPE_CHECKING:
    from jitney.capture.frame import Frame
    from jitney.capture.interpret import Interpreter


def assert_valid(interpreter: Interpreter, found: torch.Tensor) -> bool:
    """Assumes that parameters or a sample lie where they may, if that is what ``found`` tells."""
    is_check = original_code(interpreter.frames[-1].code) in torch_api.VALIDATIONS
    if not is_check or found.numel() != 1 or not can_assert(interpreter, found):
        return False
    assert_true(interpreter, found)
    return True


def call_check(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures torch's check of a condition that is a tensor; ``function`` takes it first, or
    behind the class of the error."""
    given = [value for value in args[:2] if isinstance(value, torch.Tensor)]
    condition = given[0] if given else None
    plain = not kwargs and condition is not None and condition.dtype is torch.bool
    if not plain or not can_assert(interpreter, condition):
        link = "push" if site is not None else None
        return interpreter.call_python(function, args, kwargs, link)
    assert_true(interpreter, interpreter.torch_call(torch.all, condition))
    return None


def can_assert(interpreter: Interpreter, found: Any) -> bool:
    """Whether the graph may check it: where it is not so the graph leaves no trace, and eager
    raises at the program's line. Not on a GPU, which would not recover."""
    recorder = interpreter.recorder
    if not interpreter.options.checks or recorder.checkpoint:  # the latter is computed again, when
        return False  # nobody could run the frame anew
    if recorder.calls_authors:  # neither could anybody behind an op that nobody calls twice
        return False
    return found.device.type == "cpu" and id(found) in recorder.nodes


def assert_true(interpreter: Interpreter, found: torch.Tensor) -> None:
    """Has the graph check a truth value (`can_assert`)."""
    interpreter.recorder.call(torch.ops.aten._assert_async.default, (found,), {})
