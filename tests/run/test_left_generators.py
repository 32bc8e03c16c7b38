"""A generator or an object with a ``__del__`` that a compiled function lets go of ends there, as in
eager."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
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


class Ending:
    """It notes its end."""

    def __del__(self, note: Any = NOTES.append) -> None:
        note("ended")


def _made(x: Any) -> Any:
    ending = Ending()
    return x * 2 if ending else x


def _made_by_new(x: Any) -> Any:
    ending = object.__new__(Ending)
    return x * 2 if ending else x


def _copied(x: Any) -> Any:
    ending = [copy.copy(FIRST), copy.deepcopy(FIRST)]
    return x * len(ending)


FIRST = Ending()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(("f", "ends"), [(_made, 1), (_made_by_new, 1), (_copied, 2)])
def test_an_object_ends_once_in_each_call(f: Any, ends: int) -> None:
    compiled = jitney.compile(f, backend="eager")
    for _ in range(6):
        NOTES.clear()
        assert compiled(torch.ones(3)).tolist() == [2.0] * 3
        assert NOTES == ["ended"] * ends


@pytest.mark.usefixtures("uncollected")
def test_no_entry_keeps_a_context_manager() -> None:
    @contextmanager
    def noted() -> Iterator[int]:
        try:
            yield 3
        finally:
            NOTES.append("left")

    def f(x: Any) -> Any:
        manager = noted()
        k = manager.__enter__()
        y = x * k
        print("a break", end="")
        return y

    compiled = jitney.compile(f, backend="eager")
    for _ in range(6):
        NOTES.clear()
        compiled(torch.ones(3))
        assert NOTES == ["left"]


def raises(x: Any) -> Any:
    for _ in walk([x, x]):
        raise ValueError


def raises_within(x: Any) -> Any:
    for _ in walk([x]):
        raises(x)


def keeps_it(x: Any) -> Any:
    kept = walk([x, x])
    next(kept)
    raise ValueError


def notes(x: Any, call: Any) -> Any:
    try:
        call(x)
    except ValueError:
        NOTES.append("caught")
    NOTES.append("after")
    return x + 1


def notes_while_kept(x: Any, call: Any) -> Any:
    try:
        call(x)
    except ValueError as error:
        kept = error
    NOTES.append("after")
    del kept
    return x + 1


@pytest.mark.parametrize("call", [raises, raises_within, keeps_it])
def test_a_generator_ends_when_an_exception_leaves_its_frame(call: Any) -> None:
    def outcome(function: Any, *args: Any) -> Any:
        NOTES.clear()
        try:
            function(torch.ones(2), *args)
        except ValueError:
            NOTES.append("raised")
        return [*NOTES]

    for function, args in ((call, ()), (notes, (call,)), (notes_while_kept, (call,))):
        compiled = jitney.compile(function, backend="eager")
        for _ in range(3):
            assert outcome(compiled, *args) == outcome(function, *args)


def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x
    yield x * 2


@pytest.mark.parametrize("use", [list, lambda g: g.close(), next])
def test_a_generator_that_has_ended_is_one_behind_a_break(use: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        g = parts(x)
        use(g)
        g.close()
        jitney.graph_break()
        g.close()
        return type(g).__name__, g.__name__, g.__qualname__, list(g), x + 1

    found, expected = jitney.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2))
    assert found[:4] == expected[:4]
