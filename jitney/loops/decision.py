"""The answer of a ``can_…`` question: yes or no, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Truthy when allowed; ``reason`` is one sentence either way."""

    allowed: bool
    reason: str

    def __bool__(self) -> bool:
        return self.allowed


def yes(reason: str) -> Decision:
    """An allowed decision."""
    return Decision(True, reason)


def no(reason: str) -> Decision:
    """A refused decision."""
    return Decision(False, reason)
