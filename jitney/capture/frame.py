"""The state of interpreted Python frames, and the signals that leave them."""

from __future__ import annotations

from types import CellType, CodeType, FunctionType
from typing import Any

from jitney.capture.cpython import CALLED_LIES_BELOW
from jitney.capture.decode import Instruction, decode
from jitney.capture.hints import HINTS
from jitney.capture.source import Source


class _Null:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL = _Null()
RETURNED, YIELDED = 1, 2  # why a frame has stopped
ANEW = -2  # the step of a restart that breaks nowhere
CALLER = "caller"  # kind of a break before what is to see the frames that call it, uncompiled
OPTIMIZER = "optimizer-step"  # the function that a step is given to call is compiled


class Raised(BaseException):
    """The user's program raised ``exception``. Ours derive from BaseException, so that no
    ``except Exception`` of natively running code can swallow them."""

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


class BreakCapture(BaseException):
    """What the current instruction does cannot be captured. ``forbidden``: whether the program has
    said, at this place, that breaks are errors; None until that is known."""

    def __init__(self, kind: str, reason: str, hint: str = "") -> None:
        self.kind, self.reason = kind, reason.partition("\n")[0]
        self.hint = hint or HINTS.get(kind, "")
        self.forbidden: bool | None = None


class Restart(BaseException):
    """Capture again from the start and break before the ``step``-th instruction."""

    def __init__(self, step: int, cause: BreakCapture) -> None:
        self.step, self.cause = step, cause


class Lazy:
    """A scalar, dict or list that nobody has looked at yet: it has no guard until it is used. It
    may be in locals, on stacks, in dicts and in arguments of interpreted calls. C code never sees
    one."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value, self.source = value, source

    def __repr__(self) -> str:
        return f"Lazy({self.source}={self.value!r})"


class Unread:
    """An argument of the captured frame that nothing has loaded yet."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value, self.source = value, source


class Frame:
    """One interpreted frame.

    ``link`` says what the caller's instruction does with the result: "push", "drop" (its stack
    already holds what it needs), or None: the caller cannot be resumed behind the call.
    """

    __slots__ = (
        "code", "program", "globals", "builtins", "globals_source", "builtins_source", "locals",
        "stack", "index", "current", "saved", "step", "kwnames", "exceptions", "link", "result",
        "closure", "function", "function_name", "module_path", "generator",
    )  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        globals_: dict[str, Any],
        globals_source: Source,
        locals_: dict[str, Any],
        closure: tuple[CellType, ...],
        link: str | None,
    ) -> None:
        self.code = code
        self.program = decode(code)
        self.globals = globals_
        self.globals_source = globals_source
        self.locals = locals_
        self.closure = closure
        for name, cell in zip(code.co_freevars, closure, strict=True):
            locals_[name] = cell
        self.stack: list[Any] = []
        self.index = 0
        self.current: Instruction = self.program.instructions[0]
        self.saved: list[Any] = self.stack
        self.step = 0
        self.kwnames: tuple[str, ...] = ()
        self.exceptions: BaseException | None = None
        self.link = link
        self.result: Any = None
        self.function: FunctionType | None = None
        self.function_name = code.co_name
        self.module_path: tuple[str, type] | None = None
        self.generator: Any = None

    def where(self) -> str:
        """ "file:line" of the current instruction."""
        return f"{self.code.co_filename}:{self.current.line}"

    def push_callable(self, value: Any) -> None:
        """Pushes a function to call, with no object that it is a method of."""
        self.stack += (value, NULL) if CALLED_LIES_BELOW else (NULL, value)

    def pop_callable(self) -> list[Any]:
        """Takes the function to call, and the object if it is a method, off the stack."""
        return [value for value in self.popn(2) if value is not NULL]

    def popn(self, count: int) -> list[Any]:
        """The top ``count`` values, in push order, removed."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values
