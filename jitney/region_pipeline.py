"""The compile of a captured graph (a *region*): it is differentiated, its forward and backward
graphs are compiled, and one callable is made of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.leaves import is_authors
from jitney.errors import (
    CompilerBug,
    JitneyError,
    LeftToEager,
    RerunOn,
    Unsupported,
    WrongForecast,
)
from jitney.events import log
from jitney.graph.ambient import Ambient
from jitney.graph.check_backward import check_backward
from jitney.graph.compute_scalars_apart import compute_scalars_apart
from jitney.graph.drop_tangents import drop_tangents
from jitney.graph.eager_gradients import EagerGradients
from jitney.graph.fold_attention_masks import fold_attention_masks
from jitney.graph.keep_attention_rows import keep_attention_rows
from jitney.graph.keep_settings import keep_settings
from jitney.graph.mark_leases import mark_leases
from jitney.graph.mark_static import mark_static
from jitney.graph.mark_statistics import mark_statistics
from jitney.graph.put_back import put_back_random, put_back_written
from jitney.graph.region import Region, RegionFacts
from jitney.graph.remove_reach import remove_reach
from jitney.graph.rerun_eagerly import leave_errors, rerun_eagerly
from jitney.graph.stitch import stitch
from jitney.graph.tangent_variants import TangentVariants, unlikely_tangents
from jitney.graph.trace_region import trace_region
from jitney.graph_pipeline import start_graph, target_of
from jitney.loops.lowerings import lowered_ops
from jitney.region_cache import BuiltGraph, BuiltRegion, region_entry
from jitney.signals import raise_if_of_signal


@dataclass(frozen=True)
class GraphCompiler:
    """The "jitney" backend: differentiates, lowers, fuses, builds kernels. Called with a graph, it
    gives a callable of the graph's inputs that returns a flat tuple. What cannot be traced runs
    eager; an event says so. Raises CompilerBug for any error that is not the user's."""

    options: Any = None

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """`start`, and the callable at once."""
        return self.start(gm, example_inputs)()

    def start(
        self,
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        rerun_on: RerunOn = (),
        refused: Callable[[Unsupported], None] | None = None,
    ) -> Callable[[], Callable[..., Any]]:
        """Begins the compile. Returns a function that waits for the kernels and gives the callable.
        ``rerun_on``: errors of a call, `LeftToEager` among them, on which the caller reruns;
        without any the callable does. ``refused`` is told why a graph is not compiled."""
        start = partial(self._start_tensors, example_inputs, rerun_on, refused)
        return compute_scalars_apart(gm, start)

    def _start_tensors(
        self,
        example_inputs: Sequence[Any],
        rerun_on: RerunOn,
        refused: Callable[[Unsupported], None] | None,
        gm: torch.fx.GraphModule,
    ) -> Callable[[], Callable[..., Any]]:
        """`start` for a graph whose results are tensors and sizes."""
        load = partial(_load_region, gm, example_inputs, self.options, Ambient.now(), rerun_on)
        with _bugs():
            entry = region_entry(gm, example_inputs, self.options, target_of(gm, self.options))
            known = entry.load() if entry is not None else None
        if known is not None:
            return partial(load, known)
        try:
            with _bugs():
                finish = start_region(gm, example_inputs, self.options)
        except Unsupported as reason:
            if refused is not None:
                refused(reason)
            return partial(_eager_forward, gm, reason, rerun_on)

        def built_region() -> Callable[..., Any]:
            try:
                with _bugs():
                    built = finish()
            except Unsupported as reason:
                if refused is not None:
                    refused(reason)
                return _eager_forward(gm, reason, rerun_on)
            if entry is not None:
                entry.save(built)
            return load(built)

        return built_region


def _eager_forward(
    gm: torch.fx.GraphModule, reason: Unsupported, rerun_on: RerunOn
) -> Callable[..., Any]:
    nodes = sum(n.op.startswith("call") for n in gm.graph.nodes)
    run = _eager_graph(gm, reason, nodes=nodes, **gm.meta.get("frame", {}))
    return put_back_random(run, rerun_on)


def _eager_graph(gm: torch.fx.GraphModule, reason: Unsupported, **facts: Any) -> Callable[..., Any]:
    log.emit("eager_graph", reason_kind=reason.kind, reason=str(reason), **facts)
    return keep_settings(gm, gm.forward)


@contextmanager
def _bugs() -> Iterator[None]:
    """A scope in which any error but a JitneyError becomes a CompilerBug."""
    try:
        yield
    except JitneyError as error:
        raise_if_of_signal(error)
        raise
    except Exception as error:
        raise_if_of_signal(error)
        message = f"a graph cannot be compiled: {type(error).__name__}: {error}"
        raise CompilerBug(message) from error


def _load_region(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Any,
    ambient: Ambient,
    rerun_on: RerunOn,
    built: BuiltRegion,
) -> Callable[..., Any]:
    """The callable of a built region; ``ambient``: the modes it was traced under; ``rerun_on``:
    see `GraphCompiler.start`."""
    backward: Any = None
    eager = None
    if built.backward is not None:
        again = cache(partial(traced_backward, gm, example_inputs, built.facts, ambient))
        unlikely = built.facts.unlikely_tangents
        backward = load_backward(built.backward, partial(again, unlikely))
        eager = EagerGradients(gm, built.facts, ambient)
        if len(built.facts.tangents) > 1:
            backward = TangentVariants(
                backward, unlikely, partial(backward_without, again, _of_training(options))
            )
    forward = built.forward.load()
    if built.facts.mutations and built.forward.rerunnable:
        forward = leave_errors(forward)
    call = stitch(built.facts, forward, backward, eager)
    call = put_back_written(call, built.forward.early)
    if built.facts.draws:
        call = put_back_random(call, rerun_on or (LeftToEager,))
    return call if rerun_on else rerun_eagerly(lambda: gm, call, _rerun_on(gm, built.facts))


def _rerun_on(gm: torch.fx.GraphModule, facts: RegionFacts) -> RerunOn:
    """On which a graph without a frame runs again. `LeftToEager` alone where more is not known to
    come before all that the graph does besides its results."""
    acts = facts.mutations or facts.draws or any(is_authors(n.target) for n in gm.graph.nodes)
    return (LeftToEager,) if acts else (LeftToEager, WrongForecast)


def start_region(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Any
) -> Callable[[], BuiltRegion]:
    """Differentiates a torch-level graph and begins to compile the forward and the backward graph:
    kernels of the first are built while the second is lowered. Returns a function that waits for
    both and gives the built region."""
    with log.stage("graph"):
        region = traced(gm, example_inputs)
    if region.backward is None:
        if options is not None and options.freeze:
            mark_statistics(region.forward.graph)
        alone = start_graph(region.forward, options)
        return lambda: BuiltRegion(region.facts, alone(), None)
    unmarked = any(torch_api.applies_unmarked(n.target) for n in gm.graph.nodes)
    if unmarked and len(region.facts.tangents) > 1:
        reason = "a custom function beside other results: which of them reach it is not known"
        raise Unsupported("autograd-function", reason, "jitney.compile captures it")
    options = _of_training(options)
    forward = start_graph(region.forward, options)
    unlikely = unlikely_tangents(region.facts)
    taken = drop_tangents(region.backward, region.facts, unlikely)
    if taken is None:  # without them it takes zeros of a symbolic size
        unlikely, taken = (), region.backward
    facts = replace(region.facts, unlikely_tangents=unlikely)
    check_backward(remove_reach(taken), facts, len(unlikely))
    backward = start_graph(taken, options)
    return lambda: BuiltRegion(facts, forward(), backward())


def _of_training(options: Any) -> Any:
    """The options for graphs with gradients, whose weights are trained: none is frozen."""
    return options if options is None else replace(options, freeze=False)


def traced(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Region:
    """``gm`` differentiated, with marks on inputs whose memory stays (`mark_static`) and on results
    that the program holds (`mark_leases`).

    A later trace (`traced_backward`) has to come to the same. So torch asks anew what it may know
    of symbolic sizes by now; and where tracing made guards on them it traces again, as the later
    one would know those from the start.
    """
    folded, keep = fold_attention_masks(keep_attention_rows(gm)), lowered_ops()
    has_learned = torch_api.ask_anew(example_inputs)
    region = trace_region(folded, example_inputs, keep=keep)
    if region.backward is not None and has_learned():
        region = trace_region(folded, example_inputs, keep=keep)
    mark_static(gm, region.forward)
    if region.backward is not None:
        mark_leases(region)
    return region


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
    """The compiled backward graph for passes without the gradients ``missing``; run eager where it
    cannot be compiled. None if no gradient is left. Raises Unsupported where it cannot be traced,
    and CompilerBug for a bug of ours unless bugs are to run eager."""
    traced = partial(again, tuple(sorted(missing)))
    try:
        with _bugs():
            backward = traced()
    except CompilerBug as bug:
        raise _left_to_eager(bug, options) from bug
    if backward is None:
        return None
    try:
        with _bugs():
            return load_backward(start_graph(backward, options)(), traced)
    except Unsupported as reason:
        return _eager_backward(backward, reason)
    except CompilerBug as bug:
        return _eager_backward(backward, _left_to_eager(bug, options))


def _left_to_eager(bug: CompilerBug, options: Any) -> Unsupported:
    """The Unsupported that stands for a bug at ``backward()``, after a warning. Raises the bug
    itself where bugs are not to run eager."""
    if options is not None and not options.eager_on_bug:
        raise bug
    warnings.warn(f"jitney: a backward pass runs eager: {bug}", stacklevel=2)
    return Unsupported("compiler-bug", str(bug))


def _eager_backward(backward: torch.fx.GraphModule, reason: Unsupported) -> Callable[..., Any]:
    """A graph of ATen ops as eager runs it, whatever autocast is on at ``backward()``."""
    run = _eager_graph(backward, reason)

    def call(*values: Any) -> Any:
        with torch_api.modes_of_backward():
            return run(*values)

    return call


def traced_backward(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    facts: RegionFacts,
    ambient: Ambient,
    missing: tuple[int, ...],
) -> torch.fx.GraphModule | None:
    """The backward graph of ``gm`` for passes without the gradients ``missing``, traced under
    ``ambient``. It takes what the region with ``facts`` saves. None if no gradient is left. Raises
    Unsupported where that is not sure to mean the same."""
    with log.stage("graph"), ambient.restored():
        region = traced(gm, example_inputs)
    assert region.backward is not None
    now, then = ((f.saved_sizes, f.saved_tensors, f.grad_inputs) for f in (region.facts, facts))
    if now != then:
        raise CompilerBug("a graph traced again keeps other tensors for its backward pass")
    if region.facts.recorded != facts.recorded:
        raise Unsupported("traced-again", "autograd takes the steps of a graph in another order")
    taken = drop_tangents(region.backward, region.facts, missing)
    if taken is not None:
        check_backward(remove_reach(taken), facts, len(missing))
    return taken
