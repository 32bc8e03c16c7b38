"""Exceptions as CPython keeps them: which one was being handled when another was raised, and what
may be raised or caught at all."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from jitney.capture import deferred
from jitney.capture.frame import BreakCapture, Raised
from jitney.capture.guard import Kind
from jitney.capture.source import Fixed, Referent

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Instructions that go on with an exception: it has its context already.
RERAISING = frozenset(("RERAISE", "CLEANUP_THROW"))


def chain(exception: BaseException, handled: BaseException | None) -> None:
    """Makes ``handled`` the context of an exception that is raised, without making a cycle."""
    if handled is None or handled is exception:
        return
    link, seen = handled, {id(handled)}
    while (following := link.__context__) is not None and id(following) not in seen:
        if following is exception:
            link.__context__ = None
            break
        seen.add(id(following))
        link = following
    exception.__context__ = handled


def chain_behind(exception: BaseException, handled: BaseException | None) -> None:
    """The same for one of C code, which may have handled others on its way."""
    last, seen = exception, {id(exception)}
    while (following := last.__context__) is not None and id(following) not in seen:
        if following is handled:
            return
        seen.add(id(following))
        last = following
    if last is exception or last.__context__ is None:
        chain(last, handled)


def handled_now(vm: Interpreter) -> BaseException | None:
    """What ``sys.exception()`` gives; nothing must be handled around a frame that handles none."""
    found = vm.current_exception()
    if found is None:
        if vm.handled_around is not None:
            raise BreakCapture("handled-around", "an exception is handled around the frame")
        vm.world.guard(Kind.IS, Referent(Fixed(sys.exception)), None)
    return found


def prepare(vm: Interpreter, value: Any, cause: Any, has_cause: bool) -> BaseException:
    """The exception that ``raise value from cause`` raises, chained. Raises `Raised`."""
    handled = handled_now(vm)
    exception = _instance(vm, value, "exceptions must derive from BaseException")
    same = handled is None or handled is exception or handled is exception.__context__
    if (has_cause or not same) and vm.world.source_of(exception) is not None:
        raise BreakCapture("outside-exception", "an exception from outside the frame is raised")
    if has_cause:
        message = "exception causes must derive from BaseException"
        exception.__cause__ = None if cause is None else _instance(vm, cause, message)
    chain(exception, handled)
    return exception


def _instance(vm: Interpreter, value: Any, otherwise: str) -> BaseException:
    if isinstance(value, type) and issubclass(value, BaseException):
        made = vm.call(value, (), {}, None)
        if not isinstance(made, BaseException):
            vm.native_broke = True  # it has been called: break before it
            raise BreakCapture("exception", f"{value.__qualname__}() gives no exception")
        return made
    if not isinstance(value, BaseException):
        raise Raised(TypeError(otherwise))
    return value


def matches(exception: BaseException, classes: Any) -> bool:
    """Whether ``except classes`` catches it. Raises TypeError as CPython does."""
    candidates = classes if isinstance(classes, tuple) else (classes,)
    for candidate in candidates:
        if not isinstance(candidate, type) or not issubclass(candidate, BaseException):
            message = "catching classes that do not inherit from BaseException is not allowed"
            raise TypeError(message)
    return any(candidate in type.mro(type(exception)) for candidate in candidates)


def becomes_error(vm: Interpreter, category: Any) -> bool:
    """Whether a filter of the program's turns such warnings into exceptions, which arise at once;
    assumes that none does where none does now."""
    world = vm.world
    shadow = world.shadows.dicts.get(id(warnings.__dict__))
    is_known = isinstance(category, type) and issubclass(category, Warning)
    if not is_known or (shadow is not None and "filters" in shadow.inside):
        return True  # it may be none, or the frame itself may have changed them
    if deferred.is_error(category):
        return True
    asked = Referent(Fixed(deferred.asking(category)))
    world.guard(Kind.EQUALS, asked, False)
    return False
