"""Captures one frame: the entry point of this folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any, cast

from jitney import torch_api
from jitney.capture import handlers_data, handlers_flow, handlers_stack, state
from jitney.capture.attempt import Attempt
from jitney.capture.break_behind import break_behind
from jitney.capture.build_resume import blocks_around
from jitney.capture.cached_functions import refuse_late_uses
from jitney.capture.changes import effects_of
from jitney.capture.checked_again import checked_again
from jitney.capture.checkpoints import (
    keep_results,
    refuse_late_changes,
    refuse_late_owners,
    refuse_late_writes,
)
from jitney.capture.describe import said_by
from jitney.capture.finish import (
    add_input_guards,
    errors_without_trace,
    finish_graph,
    forget_idle_strides,
    guard_gpu,
    guard_places,
    inputs_put_back,
)
from jitney.capture.frame import ANEW, BreakCapture, Frame, Raised, Restart, Unread
from jitney.capture.functions import globals_source, know_cells
from jitney.capture.guard import Kind
from jitney.capture.interpret import Interpreter
from jitney.capture.look_ahead import seen_ahead
from jitney.capture.options import CaptureOptions
from jitney.capture.questions import Questions
from jitney.capture.rebuild import CannotRebuild, Rebuilder
from jitney.capture.recipe import Constant, DeferredCall, SetState
from jitney.capture.result import Break, Capture, Exit, FrameState, Return
from jitney.capture.source import Attr, DictItem, Function, Local, ModuleOf
from jitney.capture.told_frames import own_frame
from jitney.capture.tracebacks import refuse_bare
from jitney.capture.uncounted_writes import refuse_overwritten
from jitney.errors import CompilerBug, JitneyError, Unsupported
from jitney.events import log
from jitney.gc_paused import gc_paused
from jitney.signals import raise_if_of_signal

HANDLERS = (handlers_data, handlers_flow, handlers_stack)  # registered by being imported
MOST_ATTEMPTS = 60
# How many levels of forward-mode differentiation surround a call, less one.
_FORWARD_AD, _LEVEL = torch_api.FORWARD_LEVEL
_FORWARD_LEVEL = DictItem(Attr(ModuleOf(_FORWARD_AD), "__dict__"), _LEVEL)


def capture_frame(
    function: FunctionType,
    arguments: Mapping[str, Any],
    *,
    options: CaptureOptions | None = None,
    attempt: Attempt | None = None,
) -> Capture:
    """Runs ``function`` on its bound ``arguments`` (by name; ``*args`` a tuple, ``**kwargs`` a
    dict) with fakes for tensors; nothing outside changes.

    ``attempt``: to begin with, instead of ``options``. Raises Unsupported when nothing can be
    captured, or at the first break of a full graph.
    """
    attempt = attempt or Attempt(options or CaptureOptions(), Questions())
    for _ in range(MOST_ATTEMPTS):
        attempt.questions.begin()
        vm = Interpreter(attempt.options, attempt.step, attempt.cause, attempt.questions)
        before = vm.state_before
        before.update(state.snapshot())
        try:
            with torch_api.quiet_fakes(), gc_paused():
                capture = _attempt(vm, function, arguments, before)
            capture.blocks = blocks_around(function.__code__)
            capture.attempt = attempt
            return capture
        except Restart as restart:
            attempt = _after(restart, vm, attempt)
        except Raised as raised:  # by a program that was told it is being compiled
            # What a program does for compilers may fail where eager's does not: capture eager's.
            cause = _cause(raised)
            options = replace(attempt.options, compiling=False)
            attempt = replace(attempt, options=options, step=-1, cause=cause)
            log.emit("capture_as_eager", where=function.__qualname__, reason=cause.reason)
        except JitneyError:
            raise
        except RecursionError:
            raise Unsupported("recursion", "what it reads or makes is nested too deeply") from None
        except Exception as error:  # not the program's: those are `Raised`
            raise_if_of_signal(error)
            raise CompilerBug(f"{type(error).__name__}: {error}") from error
        finally:
            state.restore(before)
            state.close_scopes(vm.scopes_before)
            vm.forget()
    assert attempt.cause is not None
    raise Unsupported(attempt.cause.kind, attempt.cause.reason, attempt.cause.hint)


def _after(restart: Restart, vm: Interpreter, attempt: Attempt) -> Attempt:
    """The next attempt; raises Unsupported where none could get further."""
    if _misled(vm, restart.cause):
        raise _unsupported(vm, restart.cause) from None
    asked = restart.step != ANEW and restart.cause.kind != "exception"
    if restart.step == ANEW or asked and attempt.questions.change(vm.broken_frames):
        return replace(attempt, step=-1, cause=restart.cause)
    if 0 < attempt.step <= restart.step or restart.step <= 0:
        raise _unsupported(vm, restart.cause) from None
    return replace(attempt, step=restart.step, cause=restart.cause)


#: What torch says of arguments whose types no overload takes.
_REFUSED = re.compile(r"invalid combination of arguments|argument '\w+' .*must be")


def _misled(vm: Interpreter, cause: BreakCapture) -> bool:
    """Whether a program that was told it is being compiled gives torch arguments which torch
    refuses, in a capture as in eager. Such a frame is left to eager, where the program chooses its
    own."""
    refused = str(cause.__cause__) if isinstance(cause.__cause__, TypeError) else ""
    return vm.said_compiling and bool(_REFUSED.search(refused)) and "Sym" not in refused


def _cause(raised: Raised) -> BreakCapture:
    return BreakCapture("exception", said_by(raised.exception))


def _unsupported(vm: Interpreter, cause: BreakCapture) -> Unsupported:
    frames = vm.broken_frames[::-1]
    where = (own_frame(frames) or frames[0]).where() if frames else ""
    return Unsupported(cause.kind, cause.reason, cause.hint, where, bool(cause.forbidden))


def _attempt(
    vm: Interpreter, function: FunctionType, arguments: Mapping[str, Any], before: dict[str, Any]
) -> Capture:
    for name, value in before.items():
        vm.world.guard(Kind.STATE, Function(), (name, value), name)
    vm.world.guard(Kind.EQUALS, _FORWARD_LEVEL, torch_api.forward_level())
    frame = _root(vm, function, arguments)
    rebuilder = Rebuilder(vm)
    try:
        vm.run(frame)
    except BreakCapture as cause:
        handled = [f.exceptions for f in vm.broken_frames if id(f.exceptions) in vm.raised_at]
        if handled and vm.said_compiling:  # a ``finally`` that breaks, mostly
            raise Raised(cast(BaseException, handled[-1])) from None
        if vm.questions.change(vm.broken_frames):
            raise Restart(ANEW, cause) from None
        if _misled(vm, cause):
            raise _unsupported(vm, cause) from None
        if vm.options.fullgraph or cause.forbidden:
            raise _unsupported(vm, cause) from None
        break_behind(vm, cause)
        refuse_bare(vm)
        return _close(vm, rebuilder, before, cause)
    except Raised as raised:
        if vm.said_compiling:
            raise
        _refuse_left_generators(vm, rebuilder)
        # The user's exception leaves the frame: run the instruction that raises it for real.
        step = vm.raised_at.get(id(raised.exception), (0, None))[0]
        raise Restart(step, _cause(raised)) from None
    vm.result = frame.result
    return _close(vm, rebuilder, before, None)


def _root(vm: Interpreter, function: FunctionType, arguments: Mapping[str, Any]) -> Frame:
    know_cells(vm, function.__closure__ or (), Function())
    vm.world.know(function, function, Function())
    vm.world.iterators.ahead = seen_ahead(arguments)
    code = function.__code__
    vm.world.guard(Kind.IS, Attr(Function(), "__code__"), code)
    return Frame(
        code,
        function.__globals__,
        globals_source(function.__globals__),
        {name: Unread(value, Local(name)) for name, value in arguments.items()},
        function.__closure__ or (),
        None,
    )


def _close(
    vm: Interpreter, rebuilder: Rebuilder, before: dict[str, Any], cause: BreakCapture | None
) -> Capture:
    """Rebuilds what the frame leaves behind, restores the state, and puts the capture together."""
    refuse_late_writes(vm)
    refuse_late_uses(vm)
    effects = effects_of_or_restart(vm, rebuilder, cause)
    refuse_late_changes(vm, effects)
    outside = [*rebuilder.outputs]
    end = _exit(vm, rebuilder, cause)
    refuse_late_owners(vm, rebuilder)
    _refuse_left_generators(vm, rebuilder)
    effects.extend(rebuilder.effects)
    for name, value in state.restore(before).items():
        effects.append(SetState(name, value))
    if scopes := state.close_scopes(vm.scopes_before):
        effects.append(DeferredCall(Constant(torch_api.open_scopes), (Constant(scopes),)))
    refuse_overwritten(vm, outside, rebuilder.outputs)
    graph, inputs = finish_graph(vm.recorder, rebuilder.outputs)
    if graph is not None:
        keep_results(vm, graph)
    add_input_guards(vm, graph, inputs)
    vm.world.guard_presence()
    vm.world.guard_keys()
    guard_places(vm)
    guard_gpu(vm)
    forget_idle_strides(vm)
    rerun_on = errors_without_trace(vm.recorder, graph, inputs)
    return Capture(
        graph,
        inputs,
        tuple(vm.world.guards.values()),
        tuple(effects),
        end,
        vm.recorder.shape_env,
        vm.recorder.fake_mode,
        torch_api.new_tracing_context(vm.recorder.fake_mode),
        {"instructions": vm.steps, "guards": len(vm.world.guards)},
        tuple(vm.recorder.symbols.read),
        checked_again(vm.world, [checkpoint.noted for checkpoint in vm.checkpoints]),
        rerun_on,
        tuple(vm.world.sized_calls.calls),
        put_back=inputs_put_back(vm.recorder, inputs, rerun_on),
    )


def effects_of_or_restart(
    vm: Interpreter, rebuilder: Rebuilder, cause: BreakCapture | None
) -> list[Any]:
    """The effects of the frame. Where one cannot be rebuilt, the capture is to break before the
    last instruction of the outermost frame."""
    try:
        return effects_of(vm, rebuilder)
    except CannotRebuild as error:
        raise _hoist(vm, error, cause) from None


def _hoist(vm: Interpreter, error: CannotRebuild, cause: BreakCapture | None) -> Restart:
    reason = cause or BreakCapture("rebuild", f"{error} is left behind")
    frames = vm.broken_frames
    if len(frames) > 1:
        return Restart(frames[-2].step, reason)
    step = frames[0].step if frames else vm.steps
    return Restart(step - 1 if frames else step, reason)


def _refuse_left_generators(vm: Interpreter, rebuilder: Rebuilder) -> None:
    """Raises `Restart` where a frame lets go of a generator before its ``finally`` has run: Python
    runs it then, so that frame is left to eager."""
    for generator in vm.generators:
        if generator.has_an_end() and not rebuilder.has_made(generator):
            cause = BreakCapture("generator", "a generator is left inside a try or a with")
            raise Restart(generator.entered, cause)


def _exit(vm: Interpreter, rebuilder: Rebuilder, cause: BreakCapture | None) -> Exit:
    try:
        if cause is None:
            return Return(rebuilder.of(vm.result))
        frames = vm.broken_frames[::-1]
        states = tuple([_frame_state(vm, rebuilder, f, i == 0) for i, f in enumerate(frames)])
        where = (own_frame(frames) or frames[0]).where()
        return Break(states, cause.kind, cause.reason, cause.hint, where)
    except CannotRebuild as error:
        raise _hoist(vm, error, cause) from None


def _frame_state(
    vm: Interpreter, rebuilder: Rebuilder, frame: Frame, innermost: bool
) -> FrameState:
    stack = frame.saved if innermost else frame.stack
    code = frame.code
    link = vm.link_of(frame)
    return FrameState(
        code,
        frame.function_name,
        frame.globals,
        frame.current.offset,
        tuple([rebuilder.of(v) for v in stack]),
        tuple(
            [
                (name, rebuilder.of(v))
                for name, v in frame.locals.items()
                if name not in code.co_freevars
            ]
        ),
        tuple([rebuilder.of(c) for c in frame.closure]),
        link != "drop",
        frame.current.line,
        None if frame.exceptions is None else rebuilder.of(frame.exceptions),
    )
