"""Exceptions that a frame handles have eager's tracebacks where anybody looks at them."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import X


class Noting:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __enter__(self) -> Noting:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.seen.append((kind, trace is None))
        return True


class Ignoring(Noting):
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.seen.append(kind)
        return True


@contextlib.contextmanager
def passing_on() -> Iterator[None]:
    try:
        yield
    finally:
        pass


def of_the_exception() -> Any:
    try:
        [].pop()
    except IndexError as error:
        caught = error
    return caught.__traceback__ is None


def as_text() -> Any:
    try:
        [].pop()
    except IndexError:
        return "[].pop()" in traceback.format_exc()


def of_the_moment() -> Any:
    try:
        raise ValueError(1)
    except ValueError:
        return sys.exc_info()[2] is None


def given_to_a_manager() -> Any:
    with Noting() as noting, passing_on():
        raise KeyError(3)
    return noting.seen


def given_to_one_that_ignores_it() -> Any:
    with Ignoring() as noting, passing_on():
        raise KeyError(3)
    return noting.seen


def never_raised() -> Any:
    return ValueError(2).__traceback__ is None


@pytest.mark.parametrize(
    "ask",
    [
        of_the_exception,
        as_text,
        of_the_moment,
        given_to_a_manager,
        given_to_one_that_ignores_it,
        never_raised,
    ],
)
def test_a_traceback_is_there_where_eagers_is(ask: Any) -> None:
    compiled = jitney.compile(lambda x: (x + 1, ask(), x * 2), backend="eager")
    for _ in range(2):
        assert compiled(X)[1] == ask()


@pytest.mark.parametrize("ask", [given_to_one_that_ignores_it, never_raised])
def test_an_exception_whose_traceback_nobody_sees_does_not_break(ask: Any) -> None:
    compiled = jitney.compile(lambda x: (x + 1, ask()), backend="eager", fullgraph=True)
    assert compiled(X)[1] == ask()


def test_a_logger_tells_of_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jitney.test")

    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            x = x + {"a": 1}["b"]
        except KeyError as error:
            logger.exception("first")
            logger.error("second", exc_info=True)
            logger.warning("third", exc_info=error)
        return x + 1

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        caplog.clear()
        compiled(X)
        told = [record.exc_info for record in caplog.records]
        assert [info and info[0] for info in told] == [KeyError] * 3
        assert all(info and info[2] is not None for info in told)


def test_a_logger_is_told_of_things_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jitney.test")

    class Named:
        name = "a"

        def __str__(self) -> str:
            return self.name

    def f(x: torch.Tensor, metrics: dict[str, Any]) -> torch.Tensor:
        named = Named()
        logger.warning("%s %s %s", metrics, [metrics], x.shape)
        metrics["n"] += 1
        logger.warning("%s %s", metrics, named)
        named.name = "b"
        metrics["n"] += 1
        return x + 1

    compiled = jitney.compile(f, backend="eager")
    for _ in range(2):
        caplog.clear()
        compiled(X, {"n": 1})
        told = [record.message for record in caplog.records]
        assert told == ["{'n': 1} [{'n': 1}] torch.Size([3])", "{'n': 2} a"]


def test_a_logger_tells_where_it_was_called(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jitney.places")

    def helper() -> None:
        logger.warning("in %s", "helper")
        logger.info("above", stacklevel=2)

    def f(x: torch.Tensor) -> Any:
        logger.log(logging.ERROR, "f", extra={"note": 1})
        helper()
        logger.warning(msg="named")
        return x + 1

    def told(function: Any) -> Any:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger.name):
            function(torch.ones(2))
        return [
            (r.filename, r.lineno, r.funcName, r.levelno, r.message) for r in caplog.records[:3]
        ]

    compiled = jitney.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert told(compiled) == told(f)
