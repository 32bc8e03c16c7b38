"""Generators whose frames we run: real iterators, so that C code can advance them."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn

from jitney.capture.cpython import OLD_CALLS, VERSION
from jitney.capture.frame import RETURNED, BreakCapture, Frame, Lazy, Raised
from jitney.errors import CompilerBug

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

# An ``except`` that does not match, and what it would have to name to match the end of a generator.
_MATCHING = frozenset(
    ("PUSH_EXC_INFO", "CHECK_EXC_MATCH", "COPY", "POP_EXCEPT", "CALL_INTRINSIC_1", "NOT_TAKEN")
)
_METHODS = ("send", "throw", "close", "__next__", "__iter__")
_RAISING = ("RERAISE", "CLEANUP_THROW")
_MATCHED = ("BaseException", "GeneratorExit")


class Stepped:
    """An iterator that does not derive from the ABC, whose type tests ask the tested object for its
    ``__class__``."""

    def __iter__(self) -> Any:
        return self


class FrameGenerator(Stepped):
    """A generator made in the captured frame."""

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
        self.interpreter, self.frame = interpreter, frame
        self.started = self.finished = self.running = False
        outer = interpreter.frames[-3:-2]
        function = frame.function
        self.names: tuple[str, str] | None = None  # as its function, of the frame's own, has them
        if function is None:
            self.names = frame.code.co_name, frame.code.co_qualname
        elif interpreter.is_owned(function):
            self.names = function.__name__, function.__qualname__
        self.entered = outer[0].step if outer else 0  # the call of the frame that made it
        interpreter.generators.append(self)

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resumes the frame; what it raises comes out as the real exception."""
        if not self.started and value is not None and not self.finished:
            raise TypeError("can't send non-None value to a just-started generator")
        self._refuse_running()
        if self.finished:
            raise StopIteration
        self.frame.stack.append(value)
        return self._resume()

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """Raises inside the frame, or first inside what its ``yield from`` delegates to."""
        self._refuse_running()
        receiver = self.receiver()
        if receiver is not None:
            classes = kind if isinstance(kind, type) else type(kind)
            if issubclass(classes, GeneratorExit):
                return self._raise(self._closed(receiver) or self._made(kind, value, trace))
            throw = self._method(receiver, "throw")
            if throw is not None:
                given = [kind, value, trace]
                while given[-1] is None and len(given) > 1:
                    given.pop()
                return self._delegate(throw, given)
        exception = self._made(kind, value, trace)
        if self.started and not self.finished:
            return self._raise(exception)
        self.interpreter.know_raised(exception)
        wraps, self.finished = OLD_CALLS and not self.finished, True
        surface(stopped(exception) if wraps else exception)

    def close(self) -> Any:
        """Ends the frame with GeneratorExit. From Python 3.13 on returns what the frame returns
        then."""
        self._refuse_running()
        if self.finished or not self.started:
            self.finished = True
            return None
        receiver = self.receiver()
        failed = None if receiver is None else self._closed(receiver)
        try:
            self._raise(failed or GeneratorExit())
        except GeneratorExit:
            return None
        except StopIteration as end:
            return end.value if VERSION >= (3, 13) else None
        raise RuntimeError("generator ignored GeneratorExit")

    def receiver(self) -> Any:
        """The iterator of the ``yield from`` in which the frame is suspended; None elsewhere."""
        if not self.started or self.finished or self.running:
            return None
        following = self.frame.program.instructions[self.frame.index]
        is_delegating = following.name == "RESUME" and following.arg & 3 >= 2
        return self.frame.stack[-1] if is_delegating else None

    def _refuse_running(self) -> None:
        if self.running:
            raise ValueError("generator already executing")

    def _method(self, receiver: Any, name: str) -> Any:
        """A bound method of the iterator that is delegated to; None if it has none."""
        if isinstance(receiver, FrameGenerator):
            return getattr(receiver, name)
        owner = receiver.owner if isinstance(receiver, MethodIterator) else receiver
        try:
            found = self.interpreter.get_attr(owner, name)
        except Raised as raised:
            if isinstance(raised.exception, AttributeError):
                return None
            failed = raised.exception
        else:
            return self.interpreter.world.force(found)
        surface(failed)

    def _closed(self, receiver: Any) -> BaseException | None:
        """Closes the iterator that is delegated to. Returns the exception that it raises, if
        any."""
        self.running = True
        try:
            close = self._method(receiver, "close")
            if close is not None:
                _through(self.interpreter, close)
        except BaseException as error:  # goes on in the frame
            if not self.interpreter.is_programs(error):
                raise
            return error
        finally:
            self.running = False
        return None

    def _delegate(self, throw: Any, given: list[Any]) -> Any:
        """Raises inside the iterator that is delegated to; the frame goes on where that ends."""
        self.running = True
        try:
            return _through(self.interpreter, throw, *given)
        except BaseException as error:  # goes on in the frame
            if not self.interpreter.is_programs(error):
                raise
            failed = error
        finally:
            self.running = False
        if not isinstance(failed, StopIteration):
            return self._raise(failed)
        at = self.frame.program.instructions[self.frame.index - 2]
        if at.name != "SEND":
            raise CompilerBug(f"a generator delegates at {at.name}")
        if OLD_CALLS:  # there is no END_SEND
            self.frame.stack.pop()
        self.frame.stack.append(failed.value)
        self.frame.index = at.target
        return self._resume()

    def _raise(self, exception: BaseException) -> Any:
        """Goes on in the frame with an exception."""
        try:
            self.interpreter.unwind_into(self.frame, exception)
        except Raised:
            self.finished = True
        if self.finished:
            surface(stopped(exception))
        return self._resume()

    def _made(self, kind: Any, value: Any, trace: Any) -> BaseException:
        """The exception that `throw` was given, made an instance. Raises TypeError as eager
        does."""
        if trace is not None and not isinstance(trace, types.TracebackType):
            raise TypeError("throw() third argument must be a traceback object")
        if isinstance(kind, BaseException):
            if value is not None:
                raise TypeError("instance exception may not have a separate value")
            return kind
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            wanted = "exceptions must be classes or instances deriving from BaseException"
            raise TypeError(f"{wanted}, not {type(kind).__name__}")
        if isinstance(value, kind):
            return value
        given = () if value is None else value if isinstance(value, tuple) else (value,)
        made = _through(self.interpreter, kind, *given)
        if not isinstance(made, BaseException):
            raise BreakCapture("exception", f"{kind.__qualname__}() gives no exception")
        return made

    def attribute(self, name: str) -> Any:
        """``generator.name``, as it would be of the real one."""
        if name in _METHODS:
            return types.MethodType(getattr(FrameGenerator, name), self)
        if name in ("__name__", "__qualname__"):
            if self.names is None:
                return self.interpreter.get_attr(self.frame.function, name)
            return self.names[name == "__qualname__"]
        if name == "__class__":
            return types.GeneratorType
        raise BreakCapture("generator", f"{name} of a generator is looked at")

    def has_an_end(self) -> bool:
        """Whether code of a ``finally`` or ``with`` runs when the generator is dropped where it
        stopped."""
        if self.finished or not self.started:
            return False
        program, at = self.frame.program, self.frame.index - 1
        while (row := program.handler_at(at)) is not None:
            at = row.target
            while (ins := program.instructions[at]).name not in _RAISING:
                if ins.name not in _MATCHING and not ins.name.startswith(("LOAD_", "POP_JUMP")):
                    return True
                if ins.name == "LOAD_GLOBAL" and ins.value in _MATCHED:
                    return True
                at = ins.target if ins.name.startswith("POP_JUMP") else at + 1
        return False

    def _resume(self) -> Any:
        self.started = self.running = True
        failed: BaseException | None = None
        try:
            signal = self.interpreter.run(self.frame)
        except Raised as raised:
            failed = raised.exception
        finally:
            self.running = False
        if failed is not None:
            self.finished = True
            surface(stopped(failed))
        result = self.frame.result
        if type(result) is Lazy:
            result = self.interpreter.world.force(result)
        if signal == RETURNED:
            self.finished = True
            raise StopIteration() if result is None else StopIteration(result)
        return result


def stopped(exception: BaseException) -> BaseException:
    """What comes out of a generator for what is raised in it."""
    if not isinstance(exception, StopIteration):
        return exception
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = error.__context__ = exception
    return error


def surface(exception: BaseException) -> NoReturn:
    """Raises the program's exception through C code as it is: with what the program made of its
    chain, not with what we handle meanwhile."""
    context = exception.__context__
    try:
        raise exception
    finally:
        exception.__context__ = context


def _through(interpreter: Interpreter, function: Any, *args: Any) -> Any:
    """What a function of the program's gives, for C code; it gets what it raises."""
    try:
        value = interpreter.call(function, args, {}, None)
    except Raised as raised:
        failed = raised.exception
    else:
        return interpreter.world.force(value)
    surface(failed)


class MethodIterator(Stepped):
    """A user's iterator object with a Python ``__next__``, for C code to advance."""

    def __init__(self, interpreter: Interpreter, owner: Any, advance: Any) -> None:
        self.interpreter, self.owner, self.advance = interpreter, owner, advance

    def __next__(self) -> Any:
        return _through(self.interpreter, self.advance, self.owner)


class IndexIterator(Stepped):
    """An iterator over a user's object with a Python ``__getitem__`` and no ``__iter__``, for C
    code."""

    def __init__(self, interpreter: Interpreter, owner: Any, item: Any) -> None:
        self.interpreter, self.owner, self.item, self.index = interpreter, owner, item, 0
        self.ended = False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            value = _through(self.interpreter, self.item, self.owner, self.index)
        except (IndexError, StopIteration):
            self.ended = True
            raise StopIteration from None
        self.index += 1
        return value


class Callback:
    """A function of the program, for C code to call."""

    def __init__(self, interpreter: Interpreter, function: Any) -> None:
        self.interpreter, self.function = interpreter, function

    def __call__(self, *args: Any) -> Any:
        """The result, forced; raises the program's own exception."""
        return _through(self.interpreter, self.function, *args)


class Predicate(Callback):
    """As `Callback`, where C code wants the truth of the result; without a function, of the
    argument."""

    def __call__(self, *args: Any) -> Any:
        """True or False; raises the program's own exception, of a ``__bool__`` too."""
        value = args[0] if self.function is None else super().__call__(*args)
        try:
            return self.interpreter.truth(value)
        except Raised as raised:
            failed = raised.exception
        surface(failed)


class Iterating(Callback):
    """``iter``, where C code advances what it gives: ``begin(interpreter, value)``."""

    def __init__(self, interpreter: Interpreter, begin: Any) -> None:
        super().__init__(interpreter, iter)
        self.begin = begin

    def __call__(self, *args: Any) -> Any:
        """The iterator; raises the program's own exception."""
        try:
            return self.begin(self.interpreter, *args)
        except Raised as raised:
            failed = raised.exception
        surface(failed)
