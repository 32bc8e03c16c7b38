"""`explain`: compile something fresh, run it once, and report what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jitney.diagnostics.kernel_times import node_seconds
from jitney.diagnostics.report import Report, report
from jitney.errors import UserError
from jitney.events import Event, log


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


def explain(fn: Callable[..., Any], **options: Any) -> Callable[..., Report]:
    """``explain(f)(*args)``: a report on compiling ``f`` for a call with these arguments.

    ``f`` runs once eager, to count its operations, and once compiled; ``options`` are `compile`'s.
    """
    if not callable(fn):
        raise UserError(f"explain takes what compile takes, then its arguments, not {fn!r}")
    original = getattr(fn, "_orig_mod", fn)

    def run(*args: Any, **kwargs: Any) -> Report:
        return explain_step(original, lambda f: f(*args, **kwargs), **options)

    return run


def explain_step(
    fn: Callable[..., Any],
    step: Callable[[Callable[..., Any]], Any],
    times: bool = False,
    **options: Any,
) -> Report:
    """The same for a step that calls what it is given: ``step(fn)``, then ``step(compiled)``.
    ``times``: time every distinct kernel by itself as well."""
    from jitney.api import compile as jit

    with CountOperations() as counter:
        step(fn)
    events: list[Event] = []
    stop = log.listen(events.append)
    try:
        step(jit(fn, **options))
    finally:
        stop()
    return report(events, counter.count, node_seconds if times else None)
