"""What calls of compiled functions do under the stance in force: `set_stance`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from jitney.errors import UserError

STANCES = (
    "default",
    "force_eager",
    "eager_on_recompile",
    "fail_on_recompile",
    "eager_then_compile",
    "aot_eager_then_compile",
)


_state = {"own": "default", "torch": "default"}
_seen_once: weakref.WeakSet[Any] = weakref.WeakSet()
everything: weakref.WeakSet[Any] = weakref.WeakSet()  # all CompiledCode, told of changes


def current() -> str:
    """The stance in force, process-wide: ours, or where that is the default one, torch's."""
    own = _state["own"]
    return _state["torch"] if own == "default" else own


def change(name: str, whose: str = "own") -> str:
    """Makes ``name`` our stance, or the one that torch has set; the one before."""
    if name not in STANCES:
        raise UserError(f"unknown stance {name!r}; stances are {', '.join(STANCES)}")
    before = _state[whose]
    _state[whose] = name
    for compiled in list(everything):
        compiled.refresh()
    return before


def allows_compile(compiled: Any, explain: Callable[[], str]) -> bool:
    """Whether a call of ``compiled`` that no entry serves may compile; ``explain`` says which call
    it is, and why none does."""
    stance = current()
    if stance == "default":
        return True
    if stance == "force_eager":
        return False
    if stance in ("eager_then_compile", "aot_eager_then_compile"):  # eager: the same results
        if compiled in _seen_once:
            return True
        _seen_once.add(compiled)
        return False
    if stance == "fail_on_recompile":
        raise UserError(f"{explain()} while the stance is fail_on_recompile")
    return False
