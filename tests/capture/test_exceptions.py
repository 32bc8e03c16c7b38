"""Exceptions: their chains, what may be raised and caught, and what is left of them."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)
X = torch.tensor([1.0, 2.0, -3.0])


class Own(Exception):
    """One with arguments of its own."""

    def __init__(self, code: int, *, extra: Any = None) -> None:
        super().__init__(f"code {code}")
        self.code, self.extra = code, extra


class Impostor(Exception):
    """Its class makes something else."""

    def __new__(cls) -> Any:
        return 5


class OnlyEnters:
    def __enter__(self) -> Any:
        return self


class OnlyExits:
    def __exit__(self, *args: Any) -> bool:
        return True


def told(error: BaseException) -> Any:
    links = error.__cause__, error.__context__
    return repr(error), [repr(link) for link in links], error.__suppress_context__


@program()
def the_context_is_what_is_handled_last():
    def inner():
        try:
            raise KeyError("b")
        except KeyError as error:
            return repr(error.__context__)

    kept, found = ValueError("kept"), []
    for outer in (KeyError("k"), TypeError("t")):
        try:
            raise outer
        except (KeyError, TypeError):
            found.append(inner())
            try:
                raise kept
            except ValueError as error:
                found.append(told(error))
    try:
        raise kept
    except ValueError as error:
        found.append(told(error))
    return found


@program()
def chains_have_no_cycle():
    one, other = ValueError("a"), KeyError("b")
    try:
        try:
            raise one
        except ValueError:
            raise other  # noqa: B904
    except KeyError:
        try:
            raise one
        except ValueError as error:
            return told(error), told(other)


@program()
def what_may_be_raised():
    found = []
    for value in (5, int, "x", None, Impostor):
        try:
            raise value
        except TypeError as error:
            found.append(str(error))
    for cause in (5, ValueError, KeyError("k"), None):
        try:
            raise ValueError("v") from cause
        except TypeError as error:
            found.append(str(error))
        except ValueError as error:
            found.append(told(error))
    return found


@program()
def what_may_be_caught():
    found = []
    for classes in (5, int, (KeyError, 3), ((KeyError,), ValueError), (), (KeyError, ValueError)):
        try:
            try:
                raise ValueError("v")
            except classes:
                found.append("caught")
        except (TypeError, ValueError) as error:
            found.append(told(error))
    return found


@program()
def what_is_no_context_manager():
    found = []
    for manager in (OnlyEnters(), OnlyExits(), 5):
        try:
            with manager:
                found.append("in")
        except TypeError as error:
            found.append(str(error))
    return found


@program()
def exceptions_that_are_kept_over_a_break():
    kept = []
    for i in range(3):
        try:
            try:
                raise KeyError(i)
            except KeyError as error:
                if i == 1:
                    raise Own(i, extra=[i]) from None
                raise Own(i) from error
        except Own as error:
            kept.append(error)
    jitney.graph_break()
    return [(told(error), error.args, error.code, error.extra) for error in kept]


@program()
def handlers_with_a_break():
    log = []
    try:
        try:
            raise KeyError("k")
        except KeyError:
            jitney.graph_break()
            raise ValueError("v")  # noqa: B904
    except ValueError as error:
        log.append(told(error))
    try:
        try:
            raise KeyError("k")
        finally:
            log.append(repr(sys.exception()))
            jitney.graph_break()
            log.append(repr(sys.exception()))
    except KeyError as error:
        log.append(told(error))
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2), TypeError(3)])
        except* ValueError as error:
            log.append(repr(error))
            jitney.graph_break()
        except* KeyError as error:
            log.append(repr(error))
    except ExceptionGroup as error:
        log.append(repr(error))
    return log


@program()
def context_managers_of_generators():
    @contextlib.contextmanager
    def entered(name):
        log.append(name)
        try:
            yield name
        except KeyError as error:
            log.append(told(error))

    log: list[Any] = []
    with entered(1), entered(2):
        raise KeyError("z")
    try:
        with entered(3):
            raise ValueError("v")
    except ValueError as error:
        log.append(told(error))
    return log


@program()
def an_exception_leaves_the_block_of_a_manager_of_c_code():
    lock, found = threading.Lock(), []
    for _ in range(2):
        try:
            with lock:
                found.append(lock.locked())
                1 / 0  # noqa: B018
        except ZeroDivisionError as error:
            found.append((lock.locked(), repr(error), error.__traceback__ is None))
    return found


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_exceptions_are_eagers(function: Any, args: Any, kwargs: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    assert compiled() == function() == compiled()


def test_what_is_handled_around_the_frame() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, repr(sys.exception()), sys.exc_info()[0]

    compiled = jitney.compile(f, backend="eager")
    assert compiled(X)[1:] == ("None", None)
    try:
        raise ValueError("q")
    except ValueError:
        assert compiled(X)[1:] == ("ValueError('q')", ValueError)
    assert compiled(X)[1:] == ("None", None)


def test_an_exception_from_outside_is_not_changed_while_captured() -> None:
    kept = ValueError("kept")

    def f(x: torch.Tensor) -> Any:
        try:
            raise KeyError("k")
        except KeyError:
            try:
                raise kept
            except ValueError as error:
                return x + 1, repr(error.__context__)

    compiled = jitney.compile(f, backend="eager")
    for _ in range(3):
        kept.__context__ = TypeError("old")
        assert compiled(X)[1] == "KeyError('k')" == repr(kept.__context__)


@pytest.mark.parametrize("way", ["read", "deleted", "in a block", "read within"])
def test_an_unbound_variable_that_others_close_over_raises_as_in_eager(way: str) -> None:
    def f(x: torch.Tensor, bind: bool) -> Any:
        if bind:
            held = 1.0

        def inner() -> Any:
            return held

        y = x + 1
        if way == "deleted":
            del held
        elif way == "in a block":
            with contextlib.nullcontext():
                y = y + held
        else:
            y = y + (held if way == "read" else inner())
        return y

    compiled = jitney.compile(f, backend="eager")
    want = f(X, True) if way != "deleted" else X + 1
    assert torch.equal(compiled(X, True), want)
    messages = []
    for function in (f, compiled):
        with pytest.raises(NameError) as caught:
            function(X, False)
        messages.append((caught.type, str(caught.value)))
    assert messages[0] == messages[1]


def test_tensors_in_handlers_with_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            try:
                x = x + 1
                if i == 1:
                    raise Own(i, extra=x * 2)
            except Own as error:
                x = error.extra
                jitney.graph_break()
                x = x - error.extra / 4
            else:
                x = x * 3
            finally:
                x = x + 0.5
        return x

    assert torch.equal(jitney.compile(f, backend="eager")(X), f(X))
