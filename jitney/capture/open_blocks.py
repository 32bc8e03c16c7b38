"""The ``with`` blocks inside which a frame goes on behind a break.

An error of a compiled graph arises at no instruction of the frame. Where eager cannot run the frame
again, the error goes to the caller, past the frame's own handlers. It still leaves the blocks
around the graph, so that gradients do not stay off and no lock stays taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from jitney.capture.cpython import SPECIAL_METHODS
from jitney.capture.edit_code import handled_ranges, list_code

#: Slots under what a handler is entered with: ``__exit__``, from 3.14 on a NULL above it.
_EXIT_BELOW = 2 if SPECIAL_METHODS else 1


@lru_cache(maxsize=4096)
def exit_slots(code: CodeType, index: int) -> tuple[int, ...]:
    """Stack slots of the ``__exit__`` of each block around instruction ``index``, inmost first."""
    slots = []
    while around := [entry for entry in handled_ranges(code) if index in entry[0]]:
        [(_, index, depth, _)] = around  # what handles it lies in the outer blocks
        slots.append(exit_slot(code, index, depth))
    return tuple([slot for slot in slots if slot is not None])


def exit_slot(code: CodeType, handler: int, depth: int) -> int | None:
    """The stack slot of the ``__exit__`` that the handler at an instruction calls, entered with
    ``depth`` values on the stack; None if it is none of a ``with`` block."""
    names = list_code(code).names[handler : handler + 2]
    return depth - _EXIT_BELOW if names == ("PUSH_EXC_INFO", "WITH_EXCEPT_START") else None


def leave_blocks(error: BaseException, exits: Sequence[Callable[..., Any]]) -> None:
    """Calls what leaves each block, innermost first, as ``error`` passes; none of them stops it,
    nor keeps the outer ones from being left."""
    if exits:
        try:
            exits[0](type(error), error, error.__traceback__)
        finally:
            leave_blocks(error, exits[1:])
