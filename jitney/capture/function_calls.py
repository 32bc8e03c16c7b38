"""Python functions that are not simply interpreted: answers, deferred calls, breaks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.frame import BreakCapture, Frame

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

Handler = Callable[..., Any]


def answering(value: Any) -> Handler:
    """A function that answers a constant during capture."""

    def answer(interpreter: Interpreter, *rest: Any) -> Any:
        return value

    return answer


def breaking(kind: str, reason: str) -> Handler:
    """A function that is not captured."""

    def refuse(interpreter: Interpreter, *rest: Any) -> Any:
        raise BreakCapture(kind, reason)

    return refuse


def native(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """Runs for real."""
    force = interpreter.world.force
    return interpreter.native(
        function, *[force(a) for a in args], **{k: force(v) for k, v in kwargs.items()}
    )


def deferred(
    interpreter: Interpreter,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> None:
    """A call for its effect alone, put off until the graph has run."""
    force = interpreter.world.force
    values = tuple([force(a) for a in args])
    keywords = {k: force(v) for k, v in kwargs.items()}
    if any(isinstance(x, torch.Tensor) for x in (*values, *keywords.values())):
        raise BreakCapture("deferred-tensor", f"{function.__qualname__} is given a tensor")
    interpreter.deferred.append((function, values, keywords))


def _contextmanager(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    return interpreter.call_python(function, args, kwargs, None)


def _wraps(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    return interpreter.native(functools.wraps, *args, **kwargs)


HANDLERS: dict[str, Handler] = {
    "functools.wraps": _wraps,
}

__all__ = ["HANDLERS", "answering", "breaking", "contextlib", "deferred", "native"]
