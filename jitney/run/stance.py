"""What calls of compiled functions do under the stance in force: `set_stance`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from jitney.errors import UserError
from jitney.run.snapshot import snapshot

STANCES = (
    "default",
    "force_eager",
    "eager_on_recompile",
    "fail_on_recompile",
    "eager_then_compile",
    "aot_eager_then_compile",
)
#: The first call runs eager, which gives the same results under both.
_LATER = ("eager_then_compile", "aot_eager_then_compile")

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
    for compiled in snapshot(everything):
        compiled.refresh()
    return before


def refusing(compiled: Any) -> str | None:
    """The stance in force if a call of ``compiled`` that no entry serves may not compile under it.
    To ask changes nothing: `left_eager` is told where the call then runs eager."""
    stance = current()
    if stance == "default" or stance in _LATER and compiled in _seen_once:
        return None
    return stance


def left_eager(compiled: Any, stance: str, explain: Callable[[], str]) -> None:
    """A call of ``compiled`` runs eager since ``stance`` refuses to compile it. ``explain`` says
    which call it is, and why no entry serves it. Raises UserError where the stance is to."""
    if stance in _LATER:
        _seen_once.add(compiled)
    elif stance == "fail_on_recompile":
        raise UserError(f"{explain()} while the stance is {stance}")


def forget(compiled: Any) -> None:
    """The next call of ``compiled`` is its first one again."""
    _seen_once.discard(compiled)
