"""Errors that a compiled frame handles itself (``except``, ``finally``, ``with``).

An error of a compiled graph arises at no instruction of the frame. So eager runs the frame again,
and its handlers see the error at its line. A graph that writes inputs must first restore them, from
a copy of each that every call makes. Only graphs with a library call inside a handler pay for this,
if that call raises for values that no check of ours foresees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import CodeType
from typing import TYPE_CHECKING, Any

from jitney.capture import leaves
from jitney.capture.edit_code import list_code
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.open_blocks import exit_slot
from jitney.torch_api.collectives import is_collective
from jitney.torch_api.refused_values import may_refuse, unchecked_may_refuse

if TYPE_CHECKING:
    from jitney.capture.record import Recorder


def is_error_handled(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frames: Iterable[Frame]
) -> bool:
    """Whether a call of a torch function may raise for values that no check of ours asks about
    (`torch_api.refused_values`, from which `graph/effects.may_raise` asks about ops), and an error
    at the instructions where ``frames`` are would be seen by an ``except``, a ``finally`` or a
    ``with`` block of theirs, those of torch's own managers and of ``nullcontext`` aside."""
    refuses = unchecked_may_refuse(leaves.method_name(func), args, kwargs)
    return refuses and is_inside_handler(frames)


def refuse_handled_error(
    recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Breaks where the frame would handle an error of this call, or of one before it, and the graph
    has an author's op: nobody calls that twice, so eager cannot run the frame again.

    Checks of ours are made before the first such op (`loops/hoist_checks`), so one that fails
    before it comes is no matter; that a collective fails is no case to break for."""
    refused = False
    if leaves.is_authors(func):
        may_raise, refused = not is_collective(func), recorder.error_is_handled
    else:
        may_raise = recorder.calls_authors and may_refuse(leaves.method_name(func), args, kwargs)
    if refused or (may_raise and is_inside_handler(recorder.frames)):
        reason = f"the frame handles errors, and {leaves.name_of(func)} is called"
        raise BreakCapture("custom-op", f"{reason} in one graph with an op of the program's own")


def is_inside_handler(frames: Iterable[Frame]) -> bool:
    """Whether an error at the instructions where ``frames`` are would be seen by one of them."""
    return any(map(_handles, frames))


def _handles(frame: Frame) -> bool:
    row = frame.program.handler_at(frame.index - 1)
    while row is not None:
        if not _passes_on(frame.code, row.target):
            slot = exit_slot(frame.code, row.target, row.depth)
            if slot is None or not _lets_through(frame.stack[slot]):
                return True
        row = frame.program.handler_at(row.target)  # the outer blocks'
    return False


def _passes_on(code: CodeType, handler: int) -> bool:
    """Whether a handler is that of another one's own errors, which it raises again, or that of a
    generator or a comprehension (Python 3.12), which puts names back."""
    names = list_code(code).names
    if names[handler : handler + 3] == ("COPY", "POP_EXCEPT", "RERAISE"):
        return True
    end = next((at for at, name in enumerate(names) if at >= handler and name == "RERAISE"), 0)
    return end > handler and _PUTS_BACK.issuperset(names[handler:end])


_PUTS_BACK = frozenset("SWAP POP_TOP STORE_FAST STORE_FAST_MAYBE_NULL CALL_INTRINSIC_1".split())


def _lets_through(leave: Any) -> bool:
    """Whether a manager, whose ``__exit__`` is given, is torch's, or one that does nothing."""
    cls = type(getattr(leave, "__self__", None))
    return cls is nullcontext or cls.__module__.partition(".")[0] == "torch"
