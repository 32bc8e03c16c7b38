"""How the supported versions of CPython differ, where the name of an instruction does not tell."""

from __future__ import annotations

import sys

VERSION = sys.version_info[:2]
OLDEST, NEWEST = (3, 11), (3, 13)

# 3.11: calls are announced by PRECALL, methods loaded by LOAD_METHOD, jumps have a direction.
OLD_CALLS = VERSION < (3, 12)
# 3.13: NULL, or the object of a method, lies above what is called instead of below.
CALLED_LIES_BELOW = VERSION >= (3, 13)
# 3.13: LOAD_FAST loads cells too, there is no LOAD_CLOSURE.
CELLS_ARE_LOCALS = VERSION >= (3, 13)
# Where FOR_ITER goes at the end; it jumps behind them, its stack being as if they had run.
LOOP_END: tuple[str, ...] = (
    () if OLD_CALLS else ("END_FOR",) if VERSION < (3, 13) else ("END_FOR", "POP_TOP")
)


def why_unsupported() -> str | None:
    """Why this Python's frames cannot be captured, for a warning; None if they can."""
    if sys.implementation.name != "cpython":
        return f"Jitney captures frames of CPython, not of {sys.implementation.name}"
    if not OLDEST <= VERSION <= NEWEST:
        oldest, newest, this = (".".join(map(str, v)) for v in (OLDEST, NEWEST, VERSION))
        return f"Jitney knows the bytecode of Python {oldest} to {newest}, not of {this}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "Jitney needs a Python with the global interpreter lock"
    return None
