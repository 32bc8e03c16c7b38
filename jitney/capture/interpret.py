"""The bytecode interpreter: frames run on real objects, tensors being fakes.

Handlers (``handlers_*.py``) are shared by the supported CPython versions. Three things leave a
handler: `Raised` (the user's exception; handlers of the frame are looked up), `BreakCapture` (the
capture ends here) and `Restart` (capture again, break earlier). Any other exception is a bug of
ours and becomes a break too: it never reaches the user's ``except``.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from jitney import torch_api
from jitney.capture import attributes, calls, functions, operators
from jitney.capture.cached_sizes import SizedCalls
from jitney.capture.checkpoints import Checkpoint
from jitney.capture.deferred import warnings_as_errors
from jitney.capture.exceptions import RERAISING, chain, chain_behind, handled_now
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised, Restart
from jitney.capture.generators import FrameGenerator
from jitney.capture.inside_handlers import refuse_handled_error
from jitney.capture.jacobians import Pull
from jitney.capture.options import CaptureOptions
from jitney.capture.overloads import refuse_overloads
from jitney.capture.questions import Questions
from jitney.capture.record import Recorder
from jitney.capture.source import Source
from jitney.capture.symbols import SYMBOLS
from jitney.capture.tensors import Tensors
from jitney.capture.world import World
from jitney.capture.written_ops import refuse_late_error
from jitney.errors import CompilerBug, UserError
from jitney.events import log
from jitney.signals import is_of_signal, raise_if_of_signal
from jitney.torch_api.triton_kernels import is_launch

#: In what C code says of what it does not know for a number, a tensor, a container.
_STAND_IN = re.compile(r"\b(Sym(Int|Float|Bool)|FakeTensor|Lazy|FrameGenerator|MethodIterator)\b")
_TELLING = (TypeError, AttributeError, ValueError)


class Interpreter:
    """One attempt at capturing one frame. Not reused, used by one thread."""

    def __init__(
        self,
        options: CaptureOptions,
        break_step: int,
        cause: BreakCapture | None,
        questions: Questions,
    ):
        self.options = options
        self.questions = questions
        self.recorder = Recorder()
        self.tensors = Tensors(self.recorder, options)
        self.world = World(self.tensors, SizedCalls(questions.given_up))
        self.world.where = self.where
        self.frames = self.recorder.frames
        self.deferred: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.warned_at = -1  # the step of the last warning among them
        self.steps = 0
        self.break_step, self.break_cause = break_step, cause
        self.broken: BreakCapture | None = None
        self.broken_frames: list[Frame] = []
        self.native_broke = False
        self.result: Any = None
        self.said_compiling = False
        self.raised_at: dict[int, tuple[int, BaseException]] = {}
        self.owned: dict[int, Any] = {}  # instances the frame made, by id
        self.state_before: dict[str, Any] = {}  # what `state` guards and puts back
        self.scopes_before = torch_api.autocast_scopes()
        self.checkpoints: list[Checkpoint] = []
        self.overrides = 0  # calls of `__torch_function__` that are being interpreted
        self.functions_off = 0  # scopes in which no tensor's class is asked
        self.pulls: dict[int, Pull] = {}  # functions that `torch.func.vjp` returned, by id
        self.generators: list[FrameGenerator] = []
        self.handled_around = sys.exception()  # by a caller of the captured frame

    def forget(self) -> None:
        """Drops the user's objects now, instead of when cycles are collected: a generator that is
        given to a resume function must end with its last user."""
        for generator in self.generators:
            generator.frame.generator = None
            generator.__dict__.clear()
        self.world.__dict__.clear()
        self.__dict__.clear()

    def where(self) -> str:
        """The user's line that is being run, as "file:line"."""
        return self.frames[-1].where() if self.frames else ""

    # ------------------------------------------------------------ running

    def run(self, frame: Frame) -> int:
        """Runs a frame until it returns (RETURNED) or yields; the value is ``frame.result``."""
        self.frames.append(frame)
        try:
            return self._loop(frame)
        except BreakCapture as cause:
            self._broke(cause)
            raise
        except (Raised, Restart, UserError):
            raise
        except Exception as error:
            raise_if_of_signal(error)
            if isinstance(error, CompilerBug) and self.options.bug_is_error:
                raise  # of an inner frame's instruction
            details = "".join(traceback.format_exception(error))
            log.emit("capture_bug", where=frame.where(), error=details)
            if self.options.bug_is_error:
                raise CompilerBug(details) from error
            bug = BreakCapture("internal", f"{type(error).__name__}: {error}")
            self.native_broke = True  # the instruction may have done part of its work
            self._broke(bug)
            raise bug from error
        finally:
            self.frames.pop()

    def _loop(self, frame: Frame) -> int:
        instructions = frame.program.instructions
        while True:
            instruction = instructions[frame.index]
            frame.current = instruction
            frame.index += 1
            if not instruction.plain:
                self.steps += 1
                frame.step = self.steps
                frame.saved = frame.stack.copy()
                if self.steps == self.break_step and self.break_cause is not None:
                    raise self.break_cause
            handler = instruction.handler
            if handler is None:
                raise BreakCapture("opcode", f"{instruction.name} is not supported")
            try:
                signal = handler(self, frame, instruction)
            except Raised as raised:
                if self.know_raised(raised.exception, frame) and instruction.name not in RERAISING:
                    self.native_broke = True  # a break here is one before what has raised
                    chain_behind(raised.exception, handled_now(self))
                    self.native_broke = False
                self._unwind(frame, raised)
                continue
            if signal:
                return int(signal)

    def _unwind(self, frame: Frame, raised: Raised) -> None:
        """Continues at the handler of the exception, or leaves the frame with it."""
        exception = raised.exception
        row = frame.program.handler_at(frame.index - 1)
        frame.kwnames = ()
        if row is None:
            raise raised
        del frame.stack[row.depth :]
        if row.lasti:
            frame.stack.append(frame.current.offset // 2)
        frame.stack.append(exception)
        frame.index = row.target

    def _broke(self, cause: BreakCapture) -> None:
        """Decides, at the place of the break, in which frame it can be: the innermost one, or its
        caller (after a restart) where a call on the way there cannot be gone on behind."""
        raise_if_of_signal(cause)
        if self.broken is not None:
            return
        self.broken, self.broken_frames = cause, list(self.frames)
        if cause.forbidden is None:
            cause.forbidden = self.world.errors_on_break()
        frame = self.resumable(self.frames)
        without_snapshot = frame.current.plain  # the stack that was saved is an earlier one's
        if frame is not self.frames[-1] or self.native_broke or without_snapshot:
            raise Restart(frame.step, cause)

    def know_raised(self, exception: BaseException, frame: Frame | None = None) -> bool:
        """Remembers the instruction of ``frame`` at which the exception was first raised. Returns
        whether that is this one."""
        if id(exception) in self.raised_at:
            return False
        self.raised_at[id(exception)] = ((frame or self.frames[-1]).step, exception)
        return True

    def is_programs(self, error: BaseException) -> bool:
        """Whether an exception is the program's own, not a signal of ours or one to the process."""
        is_error = isinstance(error, Exception) and not is_of_signal(error)
        return is_error or id(error) in self.raised_at

    def resumable(self, frames: Sequence[Frame]) -> Frame:
        """Of ``frames``, which run one inside the other, the innermost one before whose instruction
        a break is possible."""
        for caller, frame in pairwise(frames):
            if frame.link is None:
                return caller
        return frames[-1]

    def native(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls C code for real; what it raises is the user's exception. Breaks where it would look
        into an `opaque` object, whose contents may be different in the next call."""
        if self.world.opaque and function not in (isinstance, issubclass, callable):
            owner = getattr(function, "__self__", None)
            for value in (function, owner, *args, *kwargs.values()):
                if id(value) in self.world.opaque:
                    reason = f"C code looks into a {type(value).__name__} from outside the frame"
                    raise BreakCapture("opaque-object", reason)
        self.world.called(function, args)
        try:
            with self.recorder.mode:
                result = function(*args, **kwargs)
                # Python's truth values are ints; a symbol's are not: (n > 1) == 1.
                return bool(result) if type(result) is torch.SymBool else result
        except BreakCapture:
            self.native_broke = True  # it may have advanced iterators
            raise
        except BaseException as error:
            if not self.is_programs(error):
                raise
            if _is_of_stand_ins(error, (*args, *kwargs.values())):
                self.native_broke = True
                reason = f"{type(error).__name__}: {error}"
                raise BreakCapture("symbolic-number", reason) from None
            raise Raised(error.with_traceback(None)) from None

    def torch_call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a torch function from bytecode: it is recorded, or the graph breaks before it."""
        if self.recorder.calls_written_ops:
            refuse_late_error(self, function, args, kwargs)
        if not self.options.fullgraph or is_launch(function):
            refuse_handled_error(self.recorder, function, args, kwargs)
        refuse_overloads(function, args, kwargs)
        try:
            with self.recorder.mode, warnings_as_errors(self.deferred):
                return function(*args, **kwargs)
        except Exception as error:  # eager will raise it
            reason = f"{type(error).__name__}: {error}".replace("FakeTensor", "Tensor")
            raise BreakCapture("torch-call-failed", reason) from error

    # ------------------------------------------------------------ what handlers ask for

    def pop(self, frame: Frame) -> Any:
        """Takes the top value off the stack, forced (`World.force`)."""
        value = frame.stack.pop()
        return self.world.force(value) if type(value) is Lazy else value

    def popn(self, frame: Frame, count: int) -> list[Any]:
        """Takes the top values off the stack, in push order, forced."""
        force = self.world.force
        return [force(v) if type(v) is Lazy else v for v in frame.popn(count)]

    def call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], site: Frame | None
    ) -> Any:
        """Calls anything as the user's code would. ``site``: the frame whose instruction pushes
        exactly this result, if any; then a break inside the call can be resumed."""
        return calls.call(self, function, args, kwargs, site)

    def call_python(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        link: str | None,
        module_path: tuple[str, type] | None = None,
    ) -> Any:
        """Interprets a Python function."""
        frame = functions.frame_of(self, function, args, kwargs, link)
        frame.module_path = module_path
        self.run(frame)
        return frame.result

    def get_attr(self, owner: Any, name: str, site: Frame | None = None) -> Any:
        """``owner.name``; raises `Raised(AttributeError)`."""
        return attributes.get_attr(self, owner, name, site)

    def truth(self, value: Any) -> bool:
        """``bool(value)``."""
        return operators.truth(self, value)

    def current_exception(self) -> BaseException | None:
        """The exception being handled, in this frame or one that called it."""
        for frame in reversed(self.frames):
            if frame.exceptions is not None:
                return frame.exceptions
        return None

    def link_of(self, frame: Frame) -> str | None:
        """How the frame above this one in the broken stack is linked to it (`Frame.link`)."""
        place = self.broken_frames.index(frame) + 1
        return self.broken_frames[place].link if place < len(self.broken_frames) else None

    def unwind_into(self, frame: Frame, exception: BaseException) -> None:
        """Raises inside a suspended frame."""
        self.know_raised(exception)
        frame.current = frame.program.instructions[frame.index - 1]
        chain(exception, frame.exceptions)
        self._unwind(frame, Raised(exception))

    def says_compiling(self) -> bool:
        """The answer to a program that asks whether it is being compiled."""
        self.said_compiling = self.options.compiling
        return self.said_compiling

    def is_owned(self, value: Any) -> bool:
        """Whether the frame itself made this instance."""
        return id(value) in self.owned

    def source_or_fixed(self, value: Any) -> Source:
        """The source of a value; for a value without one, `Fixed` of the value itself."""
        return attributes.source_or_fixed(self, value)


def _is_of_stand_ins(error: BaseException, values: Sequence[Any]) -> bool:
    """Whether C code may have raised the exception only because it was given a symbol or a fake,
    where eager raises another or none: the message names one, an argument is one, or our own Python
    code for one raised it."""
    if type(error) in _TELLING and _STAND_IN.search(str(error)):
        return True
    modules = [f.f_globals.get("__name__") for f, _ in traceback.walk_tb(error.__traceback__)]
    if any(str(module).split(".")[0] == "torch" for module in modules):
        return True
    return any(isinstance(v, SYMBOLS) for v in values)
