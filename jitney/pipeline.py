"""The whole compile on one screen: a frame becomes an entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from jitney import cpu_pipeline, gpu_pipeline, torch_api
from jitney.backends import Backend
from jitney.capture.build_glue import build_glue, sources_used
from jitney.capture.capture_frame import capture_frame
from jitney.capture.check_guards import compile_check
from jitney.capture.explain_guard import failures, in_brief
from jitney.capture.finish_guards import guards_of_shapes
from jitney.capture.options import CaptureOptions
from jitney.capture.result import Break, Capture
from jitney.capture.source import Roots
from jitney.errors import CompilerBug, JitneyError, Unsupported
from jitney.events import log
from jitney.graph.ambient import Ambient
from jitney.graph.compute_scalars_apart import compute_scalars_apart
from jitney.graph.device_of_graph import device_of_graph
from jitney.graph.drop_tangents import drop_tangents
from jitney.graph.eager_gradients import EagerGradients
from jitney.graph.fold_attention_masks import fold_attention_masks
from jitney.graph.mark_static import mark_static
from jitney.graph.mark_statistics import mark_statistics
from jitney.graph.region import RegionFacts
from jitney.graph.rerun_eagerly import rerun_eagerly
from jitney.graph.stitch import stitch
from jitney.graph.tangent_variants import TangentVariants, fills_in_zeros, unlikely_tangents
from jitney.graph.trace_region import trace_region
from jitney.kernels import philox_state
from jitney.kernels.llvm.host import host_target
from jitney.kernels.triton.device import device_target
from jitney.loops.ir import Extern, LoopProgram
from jitney.loops.lower_graph import lower_graph
from jitney.loops.lowered_report import report_lowered
from jitney.loops.lowerings import lowered_ops
from jitney.loops.plan_memory import plan_memory
from jitney.loops.target import Target
from jitney.loops.verify import check_step, verify
from jitney.region_cache import BuiltGraph, BuiltRegion, StoredProgram, region_entry
from jitney.run.entry import Entry, Request
from jitney.run.gc_paused import gc_paused
from jitney.run.session import Session


@torch_api.saved_hooks_off()
@gc_paused()
def compile_frame(request: Request, session: Session, backend: Backend) -> Entry:
    """Captures a frame, compiles its graph with ``backend``, builds its check and its glue."""
    name = request.function.__qualname__
    parameters = tuple(request.arguments)
    roots = Roots(request.arguments, request.function)
    with log.stage("capture", function=name):
        capture = capture_frame(
            request.function,
            request.arguments,
            options=CaptureOptions(
                fullgraph=session.fullgraph,
                dynamic=session.dynamic,
                dynamic_sources=request.dynamic_sources,
            ),
        )
    _report_break(capture, name, session.fullgraph)
    finish = _start_backend(capture, backend, name)
    with log.stage("guards", function=name):
        guards = capture.guards + guards_of_shapes(capture)
        check = compile_check(guards, parameters, name)
        _assert_true_now(check, guards, roots)
    with log.stage("backend", function=name):
        graph = finish()
    with log.stage("glue", function=name):
        glue_for = partial(
            build_glue, capture, graph, parameters, request.linker, name, request.is_resume
        )
        glue = glue_for(None)(())
    _report_entry(capture, guards, name)
    return Entry(capture, guards, check, glue, glue_for, sources_used(capture))


def _start_backend(
    capture: Capture, backend: Backend, name: str
) -> Callable[[], Callable[..., Any] | None]:
    """What gives the compiled graph. Ours may still be being built then, in other processes."""
    if capture.graph is None:
        return lambda: None
    inputs = [i.example for i in capture.inputs]
    with log.stage("backend", function=name), torch_api.tracing(capture.tracing_context):
        if isinstance(backend, GraphCompiler):
            return backend.start(capture.graph, inputs)
        graph = backend(capture.graph, inputs)
    return lambda: graph


@dataclass(frozen=True)
class GraphCompiler:
    """The "jitney" backend: differentiate, lower, fuse, build kernels. Gives a callable of the
    graph's inputs that returns a flat tuple. What cannot be traced runs eager; an event says so.
    Raises CompilerBug for any error that is not the user's."""

    options: Any = None

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        return self.start(gm, example_inputs)()

    def start(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[[], Callable[..., Any]]:
        """All but waiting for kernels, which what it returns does."""
        return compute_scalars_apart(gm, partial(self._start_tensors, example_inputs))

    def _start_tensors(
        self, example_inputs: Sequence[Any], gm: torch.fx.GraphModule
    ) -> Callable[[], Callable[..., Any]]:
        """`start` for a graph whose results are tensors and sizes."""
        load = partial(_load_region, gm, example_inputs, self.options, Ambient.now())
        entry = region_entry(gm, example_inputs, self.options, target_of(gm, self.options))
        known = entry.load() if entry is not None else None
        if known is not None:
            return partial(load, known)
        try:
            with _bugs():
                finish = start_region(gm, example_inputs, self.options)
        except Unsupported as reason:
            return partial(_eager_graph, gm, reason)

        def built_region() -> Callable[..., Any]:
            try:
                with _bugs():
                    built = finish()
            except Unsupported as reason:
                return _eager_graph(gm, reason)
            if entry is not None:
                entry.save(built)
            return load(built)

        return built_region


def _eager_graph(gm: torch.fx.GraphModule, reason: Unsupported) -> Callable[..., Any]:
    log.emit("eager_graph", reason_kind=reason.kind, reason=str(reason))
    return gm.forward


@contextmanager
def _bugs() -> Iterator[None]:
    """A scope in which errors that are nobody's else are ours."""
    try:
        yield
    except JitneyError:
        raise
    except Exception as error:
        message = f"a graph cannot be compiled: {type(error).__name__}: {error}"
        raise CompilerBug(message) from error


def _load_region(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Any,
    ambient: Ambient,
    built: BuiltRegion,
) -> Callable[..., Any]:
    """The callable of a built region; ``ambient``: the modes it was traced under."""
    backward: Any = None
    eager = None
    if built.backward is not None:
        again = cache(partial(traced_backward, gm, example_inputs, built.facts, ambient))
        unlikely = built.facts.unlikely_tangents
        backward = load_backward(built.backward, partial(again, unlikely))
        eager = EagerGradients(gm, built.facts, ambient)
        if len(built.facts.tangents) > 1 and not fills_in_zeros(gm):
            backward = TangentVariants(
                backward, unlikely, partial(backward_without, again, options)
            )
    call = stitch(built.facts, built.forward.load(), backward, eager)
    return rerun_eagerly(lambda: gm, call) if built.forward.checks else call


def start_region(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Any
) -> Callable[[], BuiltRegion]:
    """Differentiates a torch-level graph and begins to compile both halves: the kernels of the
    first are built while the second is lowered."""
    with log.stage("graph"):
        region = trace_region(fold_attention_masks(gm), example_inputs, keep=lowered_ops())
    mark_static(gm, region.forward)
    if region.backward is None:
        if options is not None and options.freeze:
            mark_statistics(region.forward.graph)
        alone = start_graph(region.forward, options)
        return lambda: BuiltRegion(region.facts, alone(), None)
    options = without_cuda_graphs(options)
    forward = start_graph(region.forward, options)
    unlikely = () if fills_in_zeros(gm) else unlikely_tangents(region.facts)
    facts = replace(region.facts, unlikely_tangents=unlikely)
    taken = drop_tangents(region.backward, region.facts, unlikely)
    assert taken is not None
    backward = start_graph(taken, options)
    return lambda: BuiltRegion(facts, forward(), backward())


def load_backward(
    built: BuiltGraph, again: Callable[[], torch.fx.GraphModule | None]
) -> Callable[..., Any]:
    """The callable of a backward graph, which ``again`` traces for eager where a check fails."""
    call = built.load()
    return rerun_eagerly(again, call) if built.checks else call


def backward_without(
    again: Callable[[tuple[int, ...]], torch.fx.GraphModule | None],
    options: Any,
    missing: Collection[int],
) -> Callable[..., Any] | None:
    """The backward graph that is not given the gradients ``missing``, compiled; None if there is
    none."""
    traced = partial(again, tuple(sorted(missing)))
    backward = traced()
    if backward is None:
        return None
    return load_backward(start_graph(backward, without_cuda_graphs(options))(), traced)


def traced_backward(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    facts: RegionFacts,
    ambient: Ambient,
    missing: tuple[int, ...],
) -> torch.fx.GraphModule | None:
    """The backward graph of ``gm``, traced under ``ambient``, that is not given the gradients
    ``missing``, of what is saved as the region with ``facts`` saves it; None if there is none."""
    with log.stage("graph"), ambient.restored():
        region = trace_region(fold_attention_masks(gm), example_inputs, keep=lowered_ops())
    assert region.backward is not None
    now, then = ((f.saved_sizes, f.saved_tensors, f.grad_inputs) for f in (region.facts, facts))
    if now != then:
        raise CompilerBug("a graph traced again keeps other tensors for its backward pass")
    return drop_tangents(region.backward, region.facts, missing)


def without_cuda_graphs(options: Any) -> Any:
    """Options for a graph that saves tensors for a backward pass: a replay would overwrite them."""
    if options is None or not options.cuda_graphs:
        return options
    log.emit("cuda_graph_refused", name="training", reason="it saves tensors for the backward pass")
    return replace(options, cuda_graphs=False)


def compile_aten(gm: torch.fx.GraphModule, options: Any = None) -> Callable[..., Any]:
    """A graph of ATen ops to ``call(*placeholder values) -> tuple``."""
    return start_graph(gm, options)().load()


def start_graph(gm: torch.fx.GraphModule, options: Any = None) -> Callable[[], BuiltGraph]:
    """A graph of ATen ops, compiled for where its tensors live; what it returns waits for the
    kernels."""
    target = target_of(gm, options)
    backend = gpu_pipeline if target.kind == "cuda" else cpu_pipeline
    with log.stage("lower"):
        program, constants = lower_graph(gm, target, options is not None and options.freeze)
    with log.stage("fuse"):
        check_step(program, "lowering")
        program = backend.transform(program, target)
    with log.stage("plan"):
        program = plan_memory(program)
        verify(program, "the last pass")
    if log.heard:
        log.emit("graph", stage="aten", code=gm.code)
    counts = report_lowered(gm.graph, program)
    checked = target.kind == "cpu" and any(b.kind == "check" for b in program.buffers)
    checks = checked or draws_of_ours(program)
    with log.stage("build"):
        code = backend.start(program, gm, target, options)

    def finish() -> BuiltGraph:
        with log.stage("build"):
            return BuiltGraph(code(), constants, counts, StoredProgram(program), checks)

    return finish


def draws_of_ours(program: LoopProgram) -> bool:
    """Whether kernels draw random numbers, which in a CUDA graph of the caller's they cannot."""
    return any(isinstance(n, Extern) and n.target == philox_state.NAME for n in program.nodes)


def target_of(gm: torch.fx.GraphModule, options: Any = None) -> Target:
    """The machine ``gm`` is compiled for."""
    device = device_of_graph(gm)
    if device.type == "cuda":
        return device_target(device.index if device.index is not None else 0)
    return host_target("" if options is None else options.cpu_features)


def _report_break(capture: Capture, name: str, fullgraph: bool) -> None:
    leaving = capture.exit
    if not isinstance(leaving, Break):
        return
    if fullgraph:
        raise Unsupported(leaving.kind, leaving.reason, leaving.hint, leaving.where)
    log.emit(
        "graph_break",
        function=name,
        break_kind=leaving.kind,
        reason=leaving.reason,
        hint=leaving.hint,
        where=leaving.where,
    )


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
