"""A time limit of the program's that ends during a compile, or while a graph runs, is told to the
caller, not lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import jitney
from jitney import graph_pipeline
from jitney.capture.record import Recorder
from jitney.capture.world import World
from jitney.kernels.call_extern import ExternCall
from jitney.signals import is_of_signal, raise_if_of_signal


class OutOfTime(Exception):
    pass


class Limit:
    """A handler that is an object; what it calls raises."""

    def __call__(self, *_: Any) -> None:
        self.end("time is over")

    def end(self, text: str) -> None:
        raise OutOfTime(text)


def handler(text: str, *_: Any) -> None:
    raise OutOfTime(text)


HANDLERS: dict[str, Any] = {
    "function": lambda *_: handler("time is over"),
    "partial": partial(handler, "time is over"),
    "object": Limit(),
    "method": Limit().__call__,
}
PLACES: dict[str, tuple[Any, str]] = {
    "a torch call": (Recorder, "call"),
    "a guard": (World, "guard"),
    "lowering": (graph_pipeline, "lower_graph"),
    "memory": (graph_pipeline, "plan_memory"),
}


@pytest.fixture(params=HANDLERS)
def limited(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def program(x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.softmax(x * 2, -1) + x.sin()
    except OutOfTime:
        return x


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The signal comes the first time that ``name`` is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("place", PLACES)
def test_the_exception_of_a_handler_goes_to_the_caller(
    place: str, limited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = jitney.compile(program, options={"cache": False})
    x = torch.randn(3, 4)
    interrupt(monkeypatch, *PLACES[place])
    with pytest.raises(OutOfTime, match="time is over"):
        compiled(x)
    torch.testing.assert_close(compiled(x), program(x))


class Interrupted(RuntimeError):
    """Of a class that torch's own errors have too."""


def stop(*_: Any) -> None:
    raise Interrupted("time is over")


def reading(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x) + b


def writing(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b.add_(1)
    return torch.linalg.svdvals(x)


def in_a_block(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        print(end="")
        return torch.linalg.svdvals(x) + b


@pytest.mark.parametrize("function", [reading, writing, in_a_block])
def test_a_handler_that_raises_while_a_graph_runs(
    function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = jitney.compile(function, options={"cache": False})
    x, b = torch.randn(3, 4), torch.zeros(3)
    torch.testing.assert_close(compiled(x, b.clone()), function(x, b.clone()))
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        interrupt(monkeypatch, ExternCall, "run")
        with pytest.raises(Interrupted, match="time is over"):
            compiled(x, b.clone())
        assert torch.is_grad_enabled()
    finally:
        signal.signal(signal.SIGUSR1, before)
    torch.testing.assert_close(compiled(x, b.clone()), function(x, b.clone()))


def test_an_error_of_the_program_is_none_of_a_handler(limited: None) -> None:
    try:
        raise OutOfTime("said by the program")
    except OutOfTime as error:
        assert not is_of_signal(error)
        raise_if_of_signal(error)
