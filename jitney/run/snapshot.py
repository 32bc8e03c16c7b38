"""What a weak set holds, while other threads add to it."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


def snapshot(found: WeakSet[T]) -> list[T]:
    """The members now. (To iterate is an error where another thread adds one meanwhile.)"""
    while True:
        try:
            return list(found)
        except RuntimeError:
            continue
