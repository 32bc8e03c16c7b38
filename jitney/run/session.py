"""What one ``jitney.compile`` owns: how to compile, and the compiled code of every frame."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from jitney import torch_api
from jitney.capture import policy
from jitney.capture.build_resume import Point, resume_code
from jitney.capture.look_ahead import look_ahead
from jitney.capture.stand_ins import disabled_because, is_disabled, mark_of
from jitney.config import Config
from jitney.errors import FullGraphError
from jitney.events import log
from jitney.run import stance
from jitney.run.dispatch import CompiledCode
from jitney.run.entry import Entry, Request
from jitney.run.may_compile import NOT_A_FRAME

_EAGER_PACKAGES = frozenset(sys.stdlib_module_names) | {"torch", "jitney", "numpy", "llvmlite"}


class Session:
    """What one ``jitney.compile`` owns. ``compile_entry`` is the pipeline with a backend bound.
    Compiled code is found by code object, globals and, for methods of modules, the module."""

    def __init__(
        self,
        compile_entry: Callable[[Request, Session], Entry],
        config: Config,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._compile_entry = compile_entry
        self.settings = settings  # arguments of ``jitney.compile``; None if they cannot be saved
        self.config = config
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self._codes: dict[tuple[int, int, int], tuple[CodeType, Any, CompiledCode]] = {}
        self._counts: Counter[CodeType] = Counter()
        self._wrappers: dict[tuple[int, int], tuple[Any, Any, FunctionType]] = {}
        # Of functions of ours and torch's, by file and name: where the program met their breaks.
        self.told_at: dict[tuple[str, str], tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._handles = 0

    def again(self) -> Session:
        """A session with the same settings and nothing compiled."""
        return Session(
            self._compile_entry,
            self.config,
            fullgraph=self.fullgraph,
            dynamic=self.dynamic,
            settings=self.settings,
        )

    def wrapper(self, function: FunctionType, owner: Any = None) -> FunctionType:
        """The compiled function for ``function``, the same one every time; itself if it is marked
        to run eager. Raises Unsupported if that may not be."""
        found = self._wrappers.get((id(function), id(owner)))
        if found is None:
            made = function
            if is_disabled(function):
                self._leave_to_eager(function)
            else:
                made = self.compiled(function, owner).wrap(function)
            found = self._wrappers[id(function), id(owner)] = (function, owner, made)
        return found[2]

    def _leave_to_eager(self, function: FunctionType) -> None:
        code, (reason, hint) = function.__code__, disabled_because(function)
        where = f"{code.co_filename}:{code.co_firstlineno}"
        if self.fullgraph:
            raise FullGraphError("disabled", reason, hint, where)
        name = function.__qualname__
        log.emit(
            "frame_skipped", function=name, where=where, kind="disabled", reason=reason, hint=hint
        )

    def compile(self, request: Request) -> Entry:
        """Compiles one frame."""
        return self._compile_entry(request, self)

    def count(self, code: CodeType) -> int:
        """How many entries were made for ``code``, over all its instances."""
        return self._counts[code]

    def add_count(self, code: CodeType) -> None:
        """Counts one more entry for ``code``."""
        self._counts[code] += 1

    def compiled(self, function: FunctionType, owner: Any = None) -> CompiledCode:
        """The compiled code that serves ``function`` (for ``owner``, a module, if given)."""
        key = (id(function.__code__), id(function.__globals__), id(owner))
        with self._lock:
            found = self._codes.get(key)
            if found is None:
                made = CompiledCode(function, self, owner)
                stance.everything.add(made)
                found = self._codes[key] = (function.__code__, owner, made)
        return found[2]

    def resume(self, point: Point, globals_: dict[str, Any], owner: Any) -> Callable[..., Any]:
        """``enter(closure, *arguments)`` of the compiled resume function at ``point``."""
        loops = point.is_in_loop
        code = resume_code(point, looks_ahead=loops)
        closure = tuple(CellType() for _ in point.cells)
        function = FunctionType(code, globals_, None, None, closure)
        function.__qualname__ = point.code.co_qualname
        compiled = self.compiled(function, owner)
        namespace = compiled.namespace
        depth = len(point.nulls) - sum(point.nulls)
        if loops:

            def enter_loop(closure: Any, *arguments: Any) -> Any:
                ahead = look_ahead(arguments[:depth])
                made = FunctionType(code, globals_, None, None, closure) if closure else function
                return namespace["_jitney_pick"](made, *arguments, ahead)(made, *arguments, ahead)

            return enter_loop
        if not point.cells:

            def enter(closure: Any, *arguments: Any) -> Any:
                return namespace["_jitney_pick"](function, *arguments)(function, *arguments)

            return enter

        def enter_closure(closure: Any, *arguments: Any) -> Any:
            made = FunctionType(code, globals_, None, None, closure)
            return namespace["_jitney_pick"](made, *arguments)(made, *arguments)

        return enter_closure

    def callee(self, value: Any) -> Any:
        """``value`` compiled if it is a plain Python function, a method of one, or a module."""
        if isinstance(value, FunctionType):
            return self.compiled(value).wrap(value) if self._wants(value) else value
        if isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
            if not self._wants(value.__func__):
                return value
            owner = value.__self__ if isinstance(value.__self__, torch.nn.Module) else None
            compiled = self.compiled(value.__func__, owner)
            return MethodType(compiled.wrap(value.__func__), value.__self__)
        if isinstance(value, torch.nn.Module) and type(value).__call__ is torch.nn.Module.__call__:
            call: Any = torch.nn.Module.__call__
            return MethodType(self.compiled(call, value).wrap(call), value)
        return value

    def _wants(self, function: FunctionType) -> bool:
        if mark_of(function) or is_disabled(function) or torch_api.is_disabling(function.__code__):
            return False
        if function.__code__.co_flags & NOT_A_FRAME or ".0" in function.__code__.co_varnames:
            return False
        if policy.is_installing(function):
            return False
        package = (function.__globals__.get("__name__") or "").partition(".")[0]
        return package not in _EAGER_PACKAGES

    def hand_out(self, handle: Any) -> Any:
        """Returns ``handle``, which the user calls. Once it and the session's other handles are
        gone, nothing here keeps the program's objects alive until Python's collector runs."""
        self._handles += 1
        finalizer = weakref.finalize(handle, _release, weakref.ref(self))
        finalizer.atexit = False
        return handle

    def release(self) -> None:
        """Notes that one handle is gone. Takes no lock: this may happen at any time, in any thread.
        Whatever else leads here (a method kept of a compiled module) compiles again."""
        self._handles -= 1
        if self._handles:
            return
        codes, self._codes, self._wrappers = self._codes, {}, {}
        for _, _, compiled in codes.values():
            compiled.forget()
            compiled.owner = None

    def reset(self) -> None:
        """Forgets all entries."""
        with self._lock:
            codes = [compiled for _, _, compiled in self._codes.values()]
            self._counts.clear()
        for compiled in codes:
            compiled.forget()


def _release(session: weakref.ref[Session]) -> None:
    found = session()
    if found is not None:
        found.release()
