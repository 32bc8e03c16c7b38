"""The whole compile on one screen: a call of a function (a *frame*) becomes an *entry*, a compiled
version of it with the check that tells when it may be used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from jitney import torch_api
from jitney.backends import Backend, OtherBackend
from jitney.capture.attempt import Attempt
from jitney.capture.build_glue import build_glue, sources_used
from jitney.capture.capture_frame import capture_frame
from jitney.capture.decode import place_of
from jitney.capture.explain_guard import failures, in_brief
from jitney.capture.finish_guards import guards_of_shapes
from jitney.capture.frame import BreakCapture
from jitney.capture.options import CaptureOptions
from jitney.capture.result import Break, Capture
from jitney.capture.source import Roots
from jitney.capture.told_frames import own_frame
from jitney.capture.walk_guards import EntryCheck
from jitney.errors import CompilerBug, Unsupported
from jitney.events import log
from jitney.gc_paused import gc_paused
from jitney.graph.keep_settings import keep_settings
from jitney.graph.put_back import put_back_random, put_back_written
from jitney.region_pipeline import GraphCompiler
from jitney.run.entry import Entry, Request
from jitney.run.session import Session


@torch_api.saved_hooks_off()
@gc_paused()
def compile_frame(request: Request, session: Session, backend: Backend) -> Entry:
    """Captures a frame, compiles its graph with ``backend``, builds its check and its glue."""
    name = request.function.__qualname__
    parameters = tuple(request.arguments)
    roots = Roots(request.arguments, request.function)
    options = CaptureOptions(
        fullgraph=session.fullgraph,
        dynamic=session.dynamic,
        dynamic_sources=request.dynamic_sources,
        checks=isinstance(backend, GraphCompiler),
        bug_is_error=not session.config.eager_on_bug,
    )
    with log.stage("capture", function=name):
        capture = capture_frame(request.function, request.arguments, options=options)
    finish, refused = _start_backend(capture, backend, roots)
    attempt = _breaking_before(refused, capture)
    if attempt is not None:
        with log.stage("capture", function=name):
            capture = capture_frame(request.function, request.arguments, attempt=attempt)
        finish, refused = _start_backend(capture, backend, roots)
    _report_break(capture, name, session)
    with log.stage("guards", function=name):
        guards = capture.guards + guards_of_shapes(capture)
        check = EntryCheck(guards, parameters, name)
        _assert_true_now(check, guards, roots)
    with log.stage("backend", function=name):
        graph = finish()
    torch_api.forget_real_tensors(capture.fake_mode)
    with log.stage("glue", function=name):
        glue_for = partial(
            build_glue, capture, graph, parameters, request.linker, name, request.is_resume
        )
        glue = glue_for(None)(())
    _report_entry(capture, guards, name)
    needed, eager = sources_used(capture), tuple([(no.kind, str(no)) for no in refused])
    return Entry(capture, guards, check, glue, glue_for, needed, eager)


Refusals = list[Unsupported]


def _start_backend(
    capture: Capture, backend: Backend, roots: Roots
) -> tuple[Callable[[], Callable[..., Any] | None], Refusals]:
    """Starts the backend. Returns a function that gives the compiled graph, None if the frame has
    none (our backend may build kernels in other processes until it is called), and why our backend
    cannot compile the graph, if so (known for sure once that function was called)."""
    refused: Refusals = []
    if capture.graph is None:
        return lambda: None, refused
    name, code = roots.function.__qualname__, roots.function.__code__
    where = f"{code.co_filename}:{code.co_firstlineno}"
    capture.graph.meta["frame"] = {"function": name, "where": where}  # for events about it
    placeholders = capture.graph.graph.find_nodes(op="placeholder")
    inputs = [node.meta["example_value"] for node in placeholders]
    with log.stage("backend", function=name), torch_api.tracing(capture.tracing_context):
        if isinstance(backend, GraphCompiler):
            finish = backend.start(
                capture.graph, inputs, rerun_on=capture.rerun_on, refused=refused.append
            )
            put_back, rerun_on = capture.put_back, capture.rerun_on
            return lambda: put_back_written(finish(), put_back, rerun_on), refused
        if isinstance(backend, OtherBackend) and backend.takes_tensors:
            inputs = _given(capture, inputs, roots)
        graph = keep_settings(capture.graph, _run_backend(backend, capture.graph, inputs))
        graph = put_back_random(graph, capture.rerun_on)
        graph = put_back_written(graph, capture.put_back, capture.rerun_on)
    return lambda: graph, refused


def _given(capture: Capture, fakes: Sequence[Any], roots: Roots) -> list[Any]:
    """The call's own tensors in place of their fakes; but the fakes, where a backend that asks for
    that of a tensor would be given another."""
    pairs = list(zip(capture.inputs, fakes, strict=True))
    given = [i.source.fetch(roots) if torch_api.is_fake(fake) else fake for i, fake in pairs]
    for value, fake in zip(given, fakes):
        if value is not fake and torch_api.known_fake_of(capture.fake_mode, value) is not fake:
            return list(fakes)
    return given


def _run_backend(backend: Backend, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """What ``backend`` makes of a graph. Random numbers that it draws by the way are drawn anew."""
    put_back = torch_api.note_generators()
    try:
        return backend(graph, inputs)
    finally:
        put_back()


def _breaking_before(refused: Refusals, capture: Capture) -> Attempt | None:
    """How to capture the frame again, with a break before a call that eager refuses: its error then
    comes where the program has it. None where there is no such call, or where the frame runs again
    in eager anyway."""
    attempt, capture.attempt = capture.attempt, None
    found = [r for r in refused if r.kind == "eager-refuses" and r.step is not None]
    if not found or RuntimeError in capture.rerun_on or attempt is None:
        return None
    assert found[0].step is not None
    return attempt.breaking(found[0].step, BreakCapture(found[0].kind, str(found[0])))


def _report_break(capture: Capture, name: str, session: Session) -> None:
    leaving = capture.exit
    if not isinstance(leaving, Break):
        return
    if session.fullgraph:
        raise Unsupported(leaving.kind, leaving.reason, leaving.hint, leaving.where)
    where, within = _told_at(leaving, session)
    log.emit(
        "graph_break",
        function=name,
        break_kind=leaving.kind,
        reason=leaving.reason,
        hint=leaving.hint,
        where=where,
        within=within,
    )


def _told_at(leaving: Break, session: Session) -> tuple[str, str]:
    """The line of the program at which a break is told, and the function. What goes on below that
    (a function of torch's, or of ours) may break again, then without the program's frame."""
    own = own_frame(leaving.frames)
    codes = [frame.code for frame in leaving.frames]
    keys = [place_of(code) for code in codes]
    if own is None:
        return session.told_at.get(keys[-1], (leaving.where, codes[0].co_qualname))
    place = (leaving.where, own.code.co_qualname)
    below = itertools.takewhile(lambda pair: pair[1] is not own, zip(keys, leaving.frames))
    session.told_at.update((key, place) for key, _ in below)
    return place


def _assert_true_now(check: Any, guards: Any, roots: Roots) -> None:
    if check(roots.function, *roots.locals.values()):
        return
    failed = failures(guards, roots)
    message = failed[0].message if failed else "it holds on a second look"
    raise CompilerBug(f"a guard does not hold of the inputs it was made for: {message}")


def _report_entry(capture: Capture, guards: Any, name: str) -> None:
    graph = capture.graph
    nodes = graph.graph.nodes if graph is not None else ()
    facts = {
        **capture.statistics,
        "function": name,
        "nodes": sum(n.op.startswith("call") for n in nodes),
        "guards": len(guards),
    }
    if log.heard:
        facts["guard_texts"] = [in_brief(guard) for guard in guards]
        facts["graph"] = graph.code if graph is not None else ""
    log.emit("entry", **facts)
