"""Generators whose frames we run: real iterators, so that C code can advance them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jitney.capture.frame import RETURNED, Frame, Lazy, Raised

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

# An ``except`` that does not match, and what it would have to name to match the end of a generator.
_MATCHING = frozenset(
    ("PUSH_EXC_INFO", "CHECK_EXC_MATCH", "COPY", "POP_EXCEPT", "CALL_INTRINSIC_1", "NOT_TAKEN")
)
_RAISING = ("RERAISE", "CLEANUP_THROW")
_MATCHED = ("BaseException", "GeneratorExit")


class FrameGenerator(Iterator[Any]):
    """A generator made in the captured frame."""

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
        self.interpreter, self.frame = interpreter, frame
        self.started = self.finished = self.running = False
        outer = interpreter.frames[-3:-2]
        self.entered = outer[0].step if outer else 0  # the call of the frame that made it
        interpreter.generators.append(self)

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resumes the frame; what it raises comes out as the real exception."""
        if self.finished:
            raise StopIteration
        self.frame.stack.append(value)
        return self._resume()

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """Raises inside the frame."""
        exception = value if isinstance(value, BaseException) else kind
        exception = exception() if isinstance(exception, type) else exception
        if self.finished or not self.started:
            self.finished = True
            raise exception
        try:
            self.interpreter.unwind_into(self.frame, exception)
        except Raised as raised:
            self.finished = True
            raise raised.exception from None
        return self._resume()

    def close(self) -> None:
        """Ends the frame with GeneratorExit."""
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self.throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def has_an_end(self) -> bool:
        """Whether code of a ``finally`` or ``with`` runs when it is let go where it stopped."""
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
        if self.running:
            raise ValueError("generator already executing")
        self.started = self.running = True
        try:
            signal = self.interpreter.run(self.frame)
        except Raised as raised:
            self.finished = True
            exception = raised.exception
            if isinstance(exception, StopIteration):
                raise RuntimeError("generator raised StopIteration") from exception
            raise exception from None
        finally:
            self.running = False
        result = self.frame.result
        if type(result) is Lazy:
            result = self.interpreter.world.force(result)
        if signal == RETURNED:
            self.finished = True
            raise StopIteration(result)
        return result


class MethodIterator(Iterator[Any]):
    """A user's iterator object with a Python ``__next__``, for C code to advance."""

    def __init__(self, interpreter: Interpreter, owner: Any, advance: Any) -> None:
        self.interpreter, self.owner, self.advance = interpreter, owner, advance

    def __next__(self) -> Any:
        try:
            value = self.interpreter.call(self.advance, (self.owner,), {}, None)
        except Raised as raised:
            raise raised.exception from None
        return self.interpreter.world.force(value)


class IndexIterator(Iterator[Any]):
    """Over a user's object with a Python ``__getitem__`` and no ``__iter__``."""

    def __init__(self, interpreter: Interpreter, owner: Any, item: Any) -> None:
        self.interpreter, self.owner, self.item, self.index = interpreter, owner, item, 0

    def __next__(self) -> Any:
        try:
            value = self.interpreter.call(self.item, (self.owner, self.index), {}, None)
        except Raised as raised:
            if isinstance(raised.exception, IndexError):
                raise StopIteration from None
            raise raised.exception from None
        self.index += 1
        return self.interpreter.world.force(value)


class Callback:
    """A function of the program, for C code to call."""

    def __init__(self, interpreter: Interpreter, function: Any) -> None:
        self.interpreter, self.function = interpreter, function

    def __call__(self, *args: Any) -> Any:
        try:
            value = self.interpreter.call(self.function, args, {}, None)
        except Raised as raised:
            raise raised.exception from None
        return self.interpreter.world.force(value)


class Predicate(Callback):
    """The same where C code asks for the truth of the result; without a function, of what it is
    given."""

    def __call__(self, *args: Any) -> Any:
        value = args[0] if self.function is None else super().__call__(*args)
        try:
            return self.interpreter.truth(value)
        except Raised as raised:
            raise raised.exception from None
