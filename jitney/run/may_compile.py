"""Whether a call that no entry serves may compile. Asking changes nothing; `dispatch` acts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitney import torch_api
from jitney.run import stance

if TYPE_CHECKING:
    from jitney.run.dispatch import CompiledCode

#: Flags of code whose calls do not run its bytecode to the end.
NOT_A_FRAME = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class NotAFrame:
    """A generator or coroutine function always runs eager: what it calls may be compiled."""

    reason: str
    hint: str = "compile what it calls"


@dataclass(frozen=True)
class Observed:
    """Something in force must see the torch calls one by one."""

    reason: str


@dataclass(frozen=True)
class Stance:
    """The stance in force, ``name``, does not let it compile now."""

    name: str


@dataclass(frozen=True)
class LimitReached:
    """As many entries as the option ``name`` allows were made, of the code or of ``whose``."""

    name: str
    limit: int
    whose: str = ""

    @property
    def reason(self) -> str:
        """In words."""
        return f"{self.name} of {self.limit} reached"


Refusal = NotAFrame | Observed | Stance | LimitReached


def why_not_compiled(compiled: CompiledCode) -> Refusal | None:
    """Why a call of ``compiled`` that no entry serves runs eager; None where it may compile."""
    if compiled.code.co_flags & NOT_A_FRAME:
        kind = "a generator or coroutine function"
        return NotAFrame(f"{compiled.name} is {kind}, which always runs eager")
    observer = torch_api.what_must_see_calls()
    if observer is not None:
        return Observed(observer)
    name = stance.refusing(compiled)
    if name is not None:
        return Stance(name)
    session = compiled.session
    limit = session.config.recompile_limit
    if len(compiled.entries) >= limit:
        return LimitReached("recompile_limit", limit)
    limit = session.config.accumulated_recompile_limit
    if session.count(compiled.code) >= limit:
        return LimitReached("accumulated_recompile_limit", limit, " for all of its instances")
    return None
