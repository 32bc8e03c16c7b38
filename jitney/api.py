"""``jitney.compile`` and its siblings: torch.compile's names with torch.compile's meanings."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, ParamSpec, TypeVar

import torch

from jitney import config, pipeline, torch_api
from jitney.backends import Backend, find_backend, list_backends
from jitney.capture import cpython, policy, substitutes
from jitney.capture.stand_ins import OURS, is_disabled, mark_of, mark_stand_in, original_of
from jitney.compiled_module import CompiledModule, call_in_place, compile_module, forward_wrapper
from jitney.config import MODES
from jitney.disk_cache import CacheInfo, load_cache_artifacts, save_cache_artifacts
from jitney.errors import UnknownArgument, UserError
from jitney.events import log
from jitney.kernels.llvm import result_memory
from jitney.region_pipeline import GraphCompiler
from jitney.run import guard_check as checks
from jitney.run import stance as stances
from jitney.run.session import Session
from jitney.run.snapshot import snapshot
from jitney.torch_api import modules

_P = ParamSpec("_P")
_R = TypeVar("_R")
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _names_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, whose error for an argument that it does not take names those it takes."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs.keys() - known.keys():
            names = ", ".join(known)
            raise UnknownArgument(
                f"{function.__name__} takes no {name!r}; its arguments are {names}"
            )
        return function(*args, **kwargs)

    return call


@_names_arguments
def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    dynamic_shapes: None = None,
    shapes_spec: None = None,
) -> Any:
    """Compiles a function, a method or a module; without ``model``, returns a decorator.

    ``fullgraph``: a graph break is an error. ``dynamic``: None makes sizes symbolic that were
    seen to change, True all, False none. ``backend``: a name from `list_backends`, a callable
    ``(gm, example_inputs) -> callable``, or None for ours. ``mode``: one of `MODES`; ``options``:
    knobs of `jitney.config` (for other backends, theirs); not both. ``disable``: return ``model``
    as it is.
    ``recompile_limit``: the knob of that name, for any backend. ``name`` and ``isolate_recompiles``
    are torch's and change nothing: what one call of this compiles is always its own.
    ``dynamic_shapes`` and ``shapes_spec`` are torch's, too: None alone is accepted.
    On a Python whose frames cannot be captured it warns once and returns ``model`` as it is; so it
    does, without a warning, if the environment says so (`config.why_disabled`).
    Raises UserError for wrong arguments.
    """
    if not isinstance(disable, bool):
        raise UserError(f"disable takes True or False, not {disable!r}")
    if dynamic_shapes is not None or shapes_spec is not None:
        given = "shapes_spec" if dynamic_shapes is None else "dynamic_shapes"
        raise UserError(f"{given} takes None alone here: use dynamic=True, or jitney.mark_dynamic")
    backend = "jitney" if backend is None else backend
    session = _new_session(fullgraph, dynamic, backend, mode, options, recompile_limit)
    unsupported = cpython.why_unsupported()
    if unsupported is not None:
        _warn_once(f"jitney: everything runs eager: {unsupported}", stacklevel=4)
        disable = True
    switch = config.why_disabled(os.environ)
    if switch:
        log.emit("frame_skipped", function="everything", kind="disabled", reason=f"{switch} is set")
        disable = True
    if model is None:
        return partial(_compile_callable, session=session, disable=disable)
    return _compile_callable(model, session=session, disable=disable)


@functools.cache
def _warn_once(message: str, stacklevel: int) -> None:
    warnings.warn(message, stacklevel=stacklevel)


def _new_session(
    fullgraph: bool,
    dynamic: bool | None,
    backend: str | Backend,
    mode: str | None,
    options: Mapping[str, Any] | None,
    recompile_limit: int | None,
) -> Session:
    _check_arguments(fullgraph, dynamic, backend, mode, options)
    chosen, given = config.current(), dict(options or {})
    if recompile_limit is not None:
        chosen = config.with_options(chosen, {"recompile_limit": recompile_limit})
    if backend == "jitney":
        chosen = config.with_options(chosen, {**MODES[mode or "default"], **given})
        run_backend: Backend = GraphCompiler(chosen)
    else:
        run_backend = find_backend(backend, given, mode)
    settings = None
    if isinstance(backend, str):
        settings = dict(
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=backend,
            mode=mode,
            options=options,
            recompile_limit=recompile_limit,
        )
    session = Session(
        partial(pipeline.compile_frame, backend=run_backend),
        chosen,
        fullgraph=fullgraph,
        dynamic=dynamic,
        settings=settings,
    )
    _sessions.add(session)
    torch_api.follow_dynamo(_torch_stance, reset)
    return session


def _torch_stance(name: str, backend: Any) -> None:
    if backend is not None:
        warnings.warn("jitney: force_backend does not change what it compiles with", stacklevel=5)
    if name not in stances.STANCES:  # torch itself raises at its next compile
        _warn_once(f"jitney: torch's stance {name!r} is none that it knows", stacklevel=6)
        name = "default"
    stances.change(name, whose="torch")


def _check_arguments(fullgraph: Any, dynamic: Any, backend: Any, mode: Any, options: Any) -> None:
    if not isinstance(fullgraph, bool):
        raise UserError(f"fullgraph takes True or False, not {fullgraph!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UserError(f"dynamic takes None, True or False, not {dynamic!r}")
    if not isinstance(backend, str) and not callable(backend):
        raise UserError(f"backend takes a name or a callable, not {backend!r}")
    if mode is not None and options is not None:
        raise UserError("mode and options exclude each other: give one of them")
    if mode is not None and mode not in MODES:
        raise UserError(f"unknown mode {mode!r}; modes are {', '.join(MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"options takes a dict, not a {type(options).__name__}")


def _compile_callable(model: Any, *, session: Session, disable: bool) -> Any:
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        log.emit("frame_skipped", function=str(type(model)), kind="script", reason="TorchScript")
        return model
    if disable:
        return model
    if isinstance(model, torch.nn.Module):
        return session.hand_out(compile_module(model, session))
    if isinstance(model, MethodType) and isinstance(model.__func__, FunctionType):
        owner = model.__self__ if isinstance(model.__self__, torch.nn.Module) else None
        plain = original_of(model.__func__)
        if isinstance(plain, MethodType):  # of another object, which it is called on
            plain = model.__func__
        if is_disabled(plain):
            return MethodType(session.wrapper(plain, owner), model.__self__)
        return MethodType(_handle(session, plain, owner), model.__self__)
    if isinstance(model, FunctionType):
        original = original_of(model)
        if isinstance(original, MethodType):
            return _compile_callable(original, session=session, disable=disable)
        if policy.is_transform(original):
            original = _calling(original)
        return _handle(session, original)
    if isinstance(model, staticmethod | classmethod):
        return type(model)(_compile_callable(model.__func__, session=session, disable=disable))
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else repr(model)
        raise UserError(f"compile takes a function, a method or a module, not {what}")
    call = type(model).__call__
    if isinstance(call, FunctionType) and isinstance(original := original_of(call), FunctionType):
        return MethodType(_handle(session, original), model)
    return _handle(session, _calling(model))


def _calling(function: Callable[..., Any]) -> FunctionType:
    """A Python function that calls ``function``, which has no bytecode of its own (a partial, a
    function of C code) or is a call that capture takes as a whole."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return functools.update_wrapper(call, function)  # type: ignore[return-value]


def _handle(session: Session, function: FunctionType, owner: Any = None) -> FunctionType:
    """The function of the same name that the user calls instead of ``function``."""
    wrapper = session.compiled(function, owner).wrap(function)
    functools.update_wrapper(wrapper, function)
    mark_stand_in(wrapper, function)
    session.hand_out(wrapper)
    return wrapper


def compile_in_place(module: torch.nn.Module, **arguments: Any) -> None:
    """As ``Module.compile()``: the module itself runs compiled from now on. ``arguments``: those of
    `compile`."""
    compiled = compile(module, **arguments)
    modules.call_instead(module, None if compiled is module else call_in_place(compiled))


def disable(function: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Marks a function (or, as torch does, the call of a module, or how instances of a class are
    made and called) to run eager always; a module or a class comes back itself.

    What it calls runs eager too: nothing watches frames that no compiled function entered, so
    ``recursive=False`` gives the same results and compiles no more.
    """
    if function is None:
        return partial(disable, recursive=recursive, reason=reason)
    if isinstance(function, torch.nn.Module):
        own = vars(function).get("forward")
        forward = disable(type(function).forward if own is None else own, recursive, reason=reason)
        # As a method, which `copy.deepcopy` binds to the copy.
        function.forward = MethodType(forward, function) if own is None else forward
        return function
    if isinstance(function, type):
        return _disable_class(function, reason)
    if not callable(function):
        raise UserError(f"disable takes a callable, not a {type(function).__name__}")

    @functools.wraps(function)
    def eager(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    torch_api.mark_disabled(eager, reason)
    return eager


def _disable_class(cls: type, reason: str | None) -> type:
    """``cls``, whose Python ``__init__`` and ``__call__`` run eager from now on."""
    for name in ("__init__", "__call__"):
        method = inspect.getattr_static(cls, name, None)
        if isinstance(method, FunctionType):
            setattr(cls, name, disable(method, reason=reason))
    return cls


@disable
def reset() -> None:
    """Forgets everything compiled in this process, and frees memory kept for results."""
    for session in snapshot(_sessions):
        session.reset()
    result_memory.KEPT.forget()


class set_stance:
    """Changes what compiled functions do: at once, and back at the end of a ``with``; also a
    decorator. `torch.compiler.set_stance` does the same, for `torch.compile` too. Stances as in
    torch: `jitney.run.stance.STANCES`. ``skip_guard_eval_unsafe`` is torch's: guards are always
    checked here. ``force_backend`` is refused: a compile keeps the backend it was given."""

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: Any = None,
    ) -> None:
        if force_backend is not None:
            raise UserError("set_stance takes no force_backend: give compile another backend")
        self._name = stance
        self._before = stances.change(stance)

    def __enter__(self) -> set_stance:
        stances.change(self._name)
        return self

    def __exit__(self, *_: Any) -> None:
        stances.change(self._before)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As a decorator: the stance holds during calls of ``function``, not from now on."""
        stances.change(self._before)

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._name):
                return function(*args, **kwargs)

        return within


def is_compiling() -> bool:
    """True while this code is being captured; False when it runs in eager."""
    return torch.compiler.is_compiling()


def is_dynamo_compiling() -> bool:
    """As `is_compiling`; torch's name for whether code is being captured from its bytecode."""
    return is_compiling()


def graph_break(message: str = "") -> None:
    """Ends the graph here; nothing when run eager."""


def allow_in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks ``function`` to be kept as one opaque call in the graph; returns it."""
    return torch_api.mark_allowed_in_graph(function)


def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks ``function``: what it returns at capture is used as a constant. Returns it."""
    torch_api.mark_constant(function)
    return function


def substitute_in_graph(
    original: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: captures call the decorated function where the program calls ``original``.

    ``can_constant_fold_through`` is torch's: what a capture computes of constants is one anyway.
    Raises UserError if the two take different parameters (unless told not to look).
    """

    def register(traceable: Callable[..., Any]) -> Callable[..., Any]:
        if not skip_signature_check and _parameters(original) != _parameters(traceable):
            raise UserError(f"{traceable!r} does not take the parameters of {original!r}")
        substitutes.register(original, traceable)
        return traceable

    return register


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]


def nested_compile_region(
    fn: Callable[..., Any] | None = None,
    *,
    options: Any = None,
    max_reuse_entries: int = 8,
    reuse_hash_fn: Callable[..., int] | None = None,
) -> Callable[..., Any]:
    """For torch's API only: returns ``fn``. A region that repeats is inlined; equal kernels are
    shared anyway."""
    return nested_compile_region if fn is None else fn


def cudagraph_mark_step_begin() -> None:
    """For torch's API only; does nothing. Results of a replay are kept apart, so steps need no
    mark."""


def guard_check(compiled: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """The native guard check of a call, alone: a callable to time (`jitney.run.guard_check`)."""
    if isinstance(compiled, CompiledModule):
        wrapper, module = forward_wrapper(compiled), compiled._orig_mod
        return checks.guard_check(wrapper, module, *args, **kwargs)
    if not isinstance(compiled, FunctionType) or mark_of(compiled) != OURS:
        raise UserError("guard_check takes what jitney.compile made of a function or a module")
    return checks.guard_check(compiled, *args, **kwargs)


@contextmanager
def options(**knobs: Any) -> Iterator[config.Config]:
    """Changes knobs for the compiles within a scope (`jitney.config.override`)."""
    with config.override(**knobs) as chosen:
        yield chosen


__all__ = [
    "CacheInfo",
    "CompiledModule",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_in_place",
    "cudagraph_mark_step_begin",
    "disable",
    "graph_break",
    "guard_check",
    "is_compiling",
    "is_dynamo_compiling",
    "list_backends",
    "load_cache_artifacts",
    "nested_compile_region",
    "options",
    "reset",
    "save_cache_artifacts",
    "set_stance",
    "substitute_in_graph",
]
