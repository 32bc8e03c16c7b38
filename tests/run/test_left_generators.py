"""A generator that a compiled function lets go of ends there, as in eager."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
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


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Cycles stay."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
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
        assert NOTES == ["walked"]


@pytest.mark.usefixtures("uncollected")
def test_no_capture_keeps_a_generator_that_it_was_given() -> None:
    def f(x: Any, values: Any) -> Any:
        for v in values:
            x = x + v
            if x.sum() > 3:  # breaks
                break
        return x

    compiled = jitney.compile(f, backend="eager")
    for _ in range(4):
        NOTES.clear()
        compiled(torch.ones(2), walk([1, 2, 3]))
        assert NOTES == ["walked"]
