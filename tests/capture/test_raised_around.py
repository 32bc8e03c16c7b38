"""What is raised while a caller handles another exception, and calls put off that may raise."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Any

import pytest

from tests.capture.run_capture import X, same_as_eager


def raising(x: Any) -> Any:
    try:
        raise ValueError(1)
    except ValueError as error:
        return x + 1, repr(error.__context__)


def c_code(x: Any) -> Any:
    try:
        int("no")
    except ValueError as error:
        return x + 1, repr(error.__context__)


def nested(x: Any) -> Any:
    try:
        try:
            raise ValueError(1)
        except ValueError:
            raise TypeError(2) from None
    except TypeError as error:
        first = error.__context__
        assert first is not None
        return x + 1, repr(first), repr(first.__context__)


OUTSIDE = OSError(4)


def from_outside(x: Any) -> Any:
    try:
        raise OUTSIDE
    except OSError as error:
        return x + 1, repr(error.__context__)


@pytest.mark.parametrize("function", [raising, c_code, nested, from_outside])
@pytest.mark.parametrize("first", [False, True])
def test_the_callers_exception_is_the_context(function: Any, first: bool) -> None:
    def program(compile: Any) -> Any:
        OUTSIDE.__context__ = None
        compiled = compile(function)
        seen = []
        for around in (first, not first, True, False):
            if not around:
                seen.append(compiled(X))
                continue
            try:
                raise KeyError(2)
            except KeyError:
                seen.append(compiled(X))
        return seen

    same_as_eager(program)


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning])
def test_a_warning_that_is_an_error(category: Any) -> None:
    def program(compile: Any) -> Any:
        @compile
        def function(x: Any) -> Any:
            try:
                warnings.warn("here", category)
            except UserWarning:
                return x - 1
            return x + 1

        seen = []
        for action in ("ignore", "error", "always", "error"):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter(action, UserWarning)  # type: ignore[arg-type]
                seen.append((function(X), len(told)))
        return seen

    same_as_eager(program)


def test_printing_that_raises() -> None:
    def program(compile: Any) -> Any:
        @compile
        def function(x: Any, file: Any) -> Any:
            try:
                print("here", file=file)
            except ValueError:
                return x - 1
            return x + 1

        seen = []
        for close in (False, True, False):
            file = io.StringIO()
            if close:
                file.close()
            seen.append(function(X, file))
            seen.append(None if close else file.getvalue())
        return [*seen, function(X, sys.stderr)]

    same_as_eager(program)
