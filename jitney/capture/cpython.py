"""How the supported versions of CPython differ, where the name of an instruction does not tell."""

from __future__ import annotations

import opcode
import sys
from typing import Any

VERSION = sys.version_info[:2]
OLDEST, NEWEST = (3, 11), (3, 14)
# Built to run without the lock, whether it does or not: its objects are laid out in another way.
FREE_THREADED = "t" in sys.abiflags

# 3.11: calls are announced by PRECALL, methods loaded by LOAD_METHOD, jumps have a direction.
OLD_CALLS = VERSION < (3, 12)
# 3.13: NULL, or the object of a method, lies above what is called instead of below.
CALLED_LIES_BELOW = VERSION >= (3, 13)
# 3.13: LOAD_FAST loads cells too, there is no LOAD_CLOSURE.
CELLS_ARE_LOCALS = VERSION >= (3, 13)
# 3.14: CALL_FUNCTION_EX finds NULL where there are no keywords.
KEYWORDS_OR_NULL = VERSION >= (3, 14)
# 3.14: what becomes a tuple is not asked for its length first.
TUPLES_ASK_FOR_LENGTHS = VERSION < (3, 14)
# 3.14: what LOAD_COMMON_CONSTANT and LOAD_SPECIAL load, by their arguments.
COMMON_CONSTANTS: tuple[Any, ...] = tuple(getattr(opcode, "_common_constants", ()))
SPECIAL_METHODS: tuple[str, ...] = tuple(getattr(opcode, "_special_method_names", ()))
# Where FOR_ITER goes at the end; behind them its stack is without the iterator. It runs none of
# them, its stack being as if they had run; from 3.14 on it runs the last one.
_LOOP_ENDS: dict[int, tuple[str, ...]] = {11: (), 12: ("END_FOR",), 13: ("END_FOR", "POP_TOP")}
LOOP_END = _LOOP_ENDS.get(VERSION[1], ("END_FOR", "POP_ITER"))


def find_special(name: str, manager: Any) -> Any:
    """The method that LOAD_SPECIAL finds, bound. Raises CPython's TypeError if there is none."""
    cls = type(manager)
    for base in cls.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, manager, cls)
    with manager:  # raises before it is entered
        raise LookupError(name)


def why_unsupported() -> str | None:
    """Why this Python's frames cannot be captured, for a warning; None if they can."""
    if sys.implementation.name != "cpython":
        return f"Jitney captures frames of CPython, not of {sys.implementation.name}"
    if not OLDEST <= VERSION <= NEWEST:
        oldest, newest, this = (".".join(map(str, v)) for v in (OLDEST, NEWEST, VERSION))
        return f"Jitney knows the bytecode of Python {oldest} to {newest}, not of {this}"
    if FREE_THREADED:
        return "Jitney needs a Python with the global interpreter lock"
    return None
