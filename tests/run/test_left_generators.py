"""A generator that a compiled function lets go of ends there, as in eager."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

import jitney

NOTES: list[str] = []


def walk(values: Any) -> Iterator[Any]:
    try:
        yield from values
    finally:
        NOTES.append("walked")


@jitney.disable
def opaque(v: Any) -> Any:
    return v


def test_no_entry_keeps_a_generator() -> None:
    """It crosses a graph break as an argument of the resume function."""

    def f(x: Any) -> Any:
        for v in walk([x, x]):
            y = opaque(v)
            break
        return y

    compiled = jitney.compile(f, backend="eager")
    for _ in range(6):
        NOTES.clear()
        compiled(torch.ones(3))
        gc.collect()
        assert NOTES == ["walked"]
