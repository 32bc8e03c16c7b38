"""From a call to the entry that serves it: a look-up, a guard check, a miss that compiles.

One `CompiledCode` holds the entries of one code object (per module instance, so that the layers
of a model do not use up each other's recompile limit). Its ``pick`` is what wrappers call; it is
replaced when entries or the stance change, so that the common call tests neither.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from jitney import torch_api
from jitney.capture.build_resume import Point, is_resume
from jitney.capture.emit_fetch import frame_locals
from jitney.capture.explain_guard import failures, generalise
from jitney.capture.source import Function, Roots, Source
from jitney.errors import CompilerBug, FullGraphError, Unsupported, UserError
from jitney.events import log
from jitney.run import stance
from jitney.run.arms import Arms, is_supported
from jitney.run.entry import Entry, Request
from jitney.run.may_compile import (
    LimitReached,
    NotAFrame,
    Observed,
    Refusal,
    Stance,
    why_not_compiled,
)
from jitney.run.snapshot import snapshot
from jitney.run.traceback import clean, warn
from jitney.run.wrapper import eager_caller, make_wrapper, new_namespace

if TYPE_CHECKING:
    from jitney.run.session import Session


#: Why a graph runs eager, where that is for the machine or for the kind of its inputs. (Of other
#: graphs reports tell, as of graph breaks.)
_TOLD = frozenset(
    {"device", "no-triton", "old-gpu", "no-bf16", "several-gpus", "subclass", "overlap"}
)


class _Thread(threading.local):
    compiling = False


_thread = _Thread()


class CompiledCode:
    """The entries of one code object with one set of globals."""

    def __init__(self, function: FunctionType, session: Session, owner: Any) -> None:
        self.code = function.__code__
        self.globals = function.__globals__
        self.name = function.__qualname__
        self.session = session
        self.owner = owner
        self.is_resume = is_resume(self.code)
        self.parameters = frame_locals(self.code)
        self.entries: tuple[Entry, ...] = ()
        self.dynamic: frozenset[tuple[Source, int | None]] = frozenset()
        self.skipped = False
        self.run_eager = eager_caller(self.code)
        self._lock = threading.Lock()
        self.arms = Arms(self.miss) if session.config.native_guards and is_supported() else None
        self.namespace = new_namespace(self.pick_miss, clean)
        self.refresh()

    @property
    def where(self) -> str:
        """The user's "file:line"."""
        return f"{self.code.co_filename}:{self.code.co_firstlineno}"

    def wrap(self, function: FunctionType) -> FunctionType:
        """A function that takes what ``function`` takes and calls it compiled."""
        return make_wrapper(function, self.namespace)

    def call(self, function: FunctionType, *values: Any) -> Any:
        """Calls compiled, on values in `frame_locals` order."""
        return self.namespace["_jitney_pick"](function, *values)(function, *values)

    def refresh(self) -> None:
        """Chooses ``pick`` anew, for the present entries and stance."""
        force_eager = self.skipped and not self.entries or stance.current() == "force_eager"
        pick: Callable[..., Any] = self.pick_eager if force_eager else self.pick_miss
        if self.arms and not force_eager:
            pick = self.arms.pick()
        self.namespace["_jitney_pick"] = pick

    def pick_miss(self, *_: Any) -> Callable[..., Any]:
        """The ``pick`` where no entry is armed: checks every entry."""
        return self.miss

    def pick_eager(self, *_: Any) -> Callable[..., Any]:
        """The ``pick`` of code that is not compiled."""
        return self.run_eager

    def unlock(self) -> None:
        """For the child of a fork: nobody compiles it there."""
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drops all entries and what was learnt from misses."""
        self.entries, self.dynamic, self.skipped = (), frozenset(), False
        stance.forget(self)
        if self.arms is not None:
            self.arms.clear()
        self.refresh()

    # ------------------------------------------------------------ a call that no arm serves

    def miss(self, function: FunctionType, *values: Any) -> Any:
        """Checks the entries in turn; compiles if none holds."""
        for entry in self.entries:
            if entry.check(function, *values):
                if self.arms is not None:
                    self._arm(entry, function, values)
                return entry.glue(function, *values)
        if _thread.compiling or self.skipped:
            return self.run_eager(function, *values)
        refusal = why_not_compiled(self)
        if refusal is not None:
            self._leave_to_eager(refusal, function, values)
            return self.run_eager(function, *values)
        if torch_api.dispatch_modes():  # they ignore what is compiled
            with torch_api.dispatch_modes_off():
                return self.miss(function, *values)
        if not self._lock.acquire(blocking=self.session.config.wait_for_compile):
            reason = "another thread is compiling it"
            log.emit("eager", function=self.name, where=self.where, reason=reason)
            return self.run_eager(function, *values)
        refused = None
        _thread.compiling = True
        try:
            holding = (e for e in self.entries if e.check(function, *values))
            found = next(holding, None) or self._compile(function, values)
        except Unsupported as error:
            found, refused = None, error
        finally:
            _thread.compiling = False
            self._lock.release()
        if refused is not None:
            self._raise_for(refused, function, values)
        run = found.glue if found else self.run_eager
        return run(function, *values)

    def _raise_for(
        self, refused: Unsupported, function: FunctionType, values: tuple[Any, ...]
    ) -> NoReturn:
        """Raises what the caller is to get: of a program that raises an error itself, that error,
        as eager does."""
        told = FullGraphError.of(refused)
        if refused.is_programs:
            self.run_eager(function, *values)
            told.hint = "eager raises nothing there: compile without fullgraph=True"
        raise told from refused.__cause__

    def _arm(self, entry: Entry, function: FunctionType, values: tuple[Any, ...]) -> None:
        if self.arms is not None and self.arms.arm(
            entry, function, dict(zip(self.parameters, values))
        ):
            self.refresh()

    def _leave_to_eager(
        self, refusal: Refusal, function: FunctionType, values: tuple[Any, ...]
    ) -> None:
        """What a refused call does besides running eager: it is told, its code is skipped from now
        on, or an error is raised."""
        if isinstance(refusal, NotAFrame):
            if self.session.fullgraph:
                raise FullGraphError("generator", refusal.reason, refusal.hint, self.where)
            reason, hint = refusal.reason, refusal.hint
            self._skip("frame_skipped", kind="generator", reason=reason, hint=hint)
        elif isinstance(refusal, Observed):
            log.emit("eager", function=self.name, where=self.where, reason=refusal.reason)
        elif isinstance(refusal, Stance):
            explain = partial(self._why_compile, function, values)
            stance.left_eager(self, refusal.name, explain)
        else:
            self._stop_compiling(refusal, self._roots(function, values))

    def _stop_compiling(self, reached: LimitReached, roots: Roots) -> None:
        """Leaves new inputs to eager from now on, after a warning. Entries that there are serve."""
        name, limit, reason = reached.name, reached.limit, reached.reason
        log.emit(
            "recompile_limit", function=self.name, where=self.where, limit=limit, reason=reason
        )
        if self.session.fullgraph:
            raise UserError(f"{self.name}: {reason} with fullgraph=True")
        failed = [f for entry in self.entries[:1] for f in failures(entry.guards, roots)]
        last = "".join(f" (last: {f.message})" for f in failed)
        if limit > 0:
            message = f"was compiled {limit} times{reached.whose}; new inputs run eager{last}"
            message += f"; JITNEY_LOGS=recompiles says why, {name}= allows more"
        else:
            message = f"runs eager and is not compiled, since {name} is {limit}"
        warn(f"jitney: {self.name} ({self.where}) {message}")
        self.skipped = True

    def _why_compile(self, function: FunctionType, values: tuple[Any, ...]) -> str:
        entries = self.entries  # others may forget them meanwhile
        if not entries:
            return f"{self.name} ({self.where}) would be compiled"
        failed = failures(entries[0].guards, self._roots(function, values))
        reasons = "".join(f" ({f.message})" for f in failed[:1])
        return f"{self.name} ({self.where}) would be compiled again{reasons}"

    def _roots(self, function: FunctionType, values: tuple[Any, ...]) -> Roots:
        return Roots(dict(zip(self.parameters, values)), function)

    def _compile(self, function: FunctionType, values: tuple[Any, ...]) -> Entry | None:
        if frame_locals(function.__code__) != self.parameters:
            why = "its code was replaced by one that takes other arguments"
            self._skip("frame_skipped", kind="changed-code", reason=why)
            return None
        roots = self._roots(function, values)
        if entries := self.entries:
            self._report_recompile(entries, roots)
        request = Request(function, dict(roots.locals), self, self.dynamic, self.is_resume)
        try:
            entry = self.session.compile(request)
        except Unsupported as error:
            if self.session.fullgraph or error.forbidden:
                raise
            self._skip("frame_skipped", kind=error.kind, reason=error.message, hint=error.hint)
            return None
        except CompilerBug as error:
            if not self.session.config.eager_on_bug:
                raise
            self._skip("compiler_bug", reason=str(error))
            warn(f"jitney: {self.name} runs eager: {error}")
            return None
        except RecursionError:
            if self.session.fullgraph:
                raise
            self._skip(
                "frame_skipped", kind="recursion", reason="what it reads or makes is too deep"
            )
            return None
        if self.is_resume and self.code.co_freevars:
            entry.habits.fresh.add(Function())
        self.session.add_count(self.code)
        self.entries = (entry, *self.entries)
        self.refresh()
        self._warn_of_eager(entry)
        return entry

    def _warn_of_eager(self, entry: Entry) -> None:
        for kind, why in entry.eager:
            if self.session.fullgraph:
                warn(f"jitney: {self.name} is one graph, which runs eager: {why}")
            elif kind in _TOLD:
                warn(f"jitney: {self.name} runs eager: {why}")

    def _skip(self, kind: str, /, **data: Any) -> None:
        log.emit(kind, function=self.name, where=self.where, **data)
        self.skipped = True
        self.refresh()

    def _report_recompile(self, entries: tuple[Entry, ...], roots: Roots) -> None:
        for entry in entries:
            failed = failures(entry.guards, roots)
            guard = failed[0].guard if failed else None
            log.emit(
                "recompile",
                function=self.name,
                where=self.where,
                source=str(guard.source) if guard else "",
                guard=guard.kind.value if guard else "",
                reason=guard.reason if guard else "",
                message=failed[0].message if failed else "a guard failed and holds again",
                entries=len(entries),
            )
        if self.session.dynamic is not False:
            self.dynamic |= generalise(entries[0].guards, roots)

    # ------------------------------------------------------------ Linker

    def resume(self, point: Point, globals_: dict[str, Any]) -> Callable[..., Any]:
        """See `Linker.resume`."""
        return self.session.resume(point, globals_, self.owner)

    def callee(self, value: Any) -> Any:
        """See `Linker.callee`."""
        return self.session.callee(value)


def _unlock_after_fork() -> None:
    """The threads that compiled are not there any more, unless this one did."""
    if not _thread.compiling:
        for compiled in snapshot(stance.everything):
            compiled.unlock()


os.register_at_fork(after_in_child=_unlock_after_fork)
