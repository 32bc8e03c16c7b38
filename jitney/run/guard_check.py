"""The guard check of a compiled function alone, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from jitney.errors import UserError
from jitney.run.wrapper import make_wrapper, new_namespace

WARM_CALLS = 3  # one compiles, the next arms the entry


def guard_check(wrapper: FunctionType, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A callable that finds the entry for these arguments and does not run it.

    ``wrapper``: what a session made for a function; it is called first, so that an entry is
    there. Guards that no native program covers run with the entry and are not included.
    Raises UserError if the call is not served by a native check.
    """
    for _ in range(WARM_CALLS):
        wrapper(*args, **kwargs)
    found: list[tuple[Any, ...]] = []

    def note(*values: Any) -> Callable[..., None]:
        found.append(values)
        return lambda *_: None

    cell = (wrapper.__closure__ or ())[0]
    make_wrapper(cell.cell_contents, new_namespace(note, lambda *_: None))(*args, **kwargs)
    check = partial(wrapper.__globals__["_jitney_pick"], *found[0])
    if getattr(check(), "__name__", "") != "glue":
        raise UserError(f"no native guard check serves this call of {wrapper.__qualname__}")
    return check
