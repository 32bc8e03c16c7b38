"""`explain`: compile something fresh, run it once, and report what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jitney.diagnostics.report import Report, report
from jitney.events import log


class CountOperations(TorchFunctionMode):
    """Counts the torch calls that return a tensor; property reads are not operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__" and has_tensor(result):
            self.count += 1
        return result


def has_tensor(value: Any) -> bool:
    """A tensor, or a flat sequence with one."""
    if isinstance(value, list | tuple):
        return any(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def explain(
    fn: Callable[..., Any],
    step: Callable[[Callable[..., Any]], Any] | None = None,
    **options: Any,
) -> Report:
    """Runs ``step(fn)`` eager to count its operations, then compiled; ``options`` go to compile.

    ``step`` takes the callable and calls it; the default calls it without arguments.
    """
    from jitney.api import compile as jit

    call = step or (lambda f: f())
    with CountOperations() as counter:
        call(fn)
    log.clear()
    call(jit(fn, **options))
    return report(log.events(), counter.count)
