"""A torch-level graph becomes ATen graphs: forward, backward and the facts that join them.

The graph runs once on fake tensors under a `Recorder`; where its results require grad, autograd
runs under the same recorder and the joint graph is split. Pure and simply mutating graphs take
one pass; the rest is traced again under torch's functionalization.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.leaves import steps_meet
from jitney.capture.remember_fakes import RememberedFakes
from jitney.errors import Unsupported
from jitney.events import log
from jitney.graph.decompositions import decompositions
from jitney.graph.describe_outputs import Results, describe_outputs
from jitney.graph.differentiate import differentiate
from jitney.graph.functionalize import Direct, Functionalized, FunctionalRecorder
from jitney.graph.join_region import join_region
from jitney.graph.mark_authors import mark_authors
from jitney.graph.recorder import NeedsFunctionalization, Recorder
from jitney.graph.region import Mutation, Region
from jitney.graph.run_torch_graph import run_torch_graph
from jitney.graph.settle import settle
from jitney.torch_api.ops import raised_by_formula

_VIEWS_OR_COPIES = frozenset("contiguous reshape reshape_as flatten ravel to".split())


def trace_region(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] = (),
    *,
    keep: Collection[Any] = (),
) -> Region:
    """Traces ``gm``, whose placeholders carry fake examples in meta (else ``example_inputs``).

    Whether there is a backward graph follows from the outputs: they require grad or they do not,
    under the grad mode in force now. ``keep``: ops (overloads or packets) not to decompose.
    Raises Unsupported for what must run eager.
    """
    given, fake_mode = _fake_inputs(gm, example_inputs)
    table = decompositions(frozenset(keep))
    symbolic = any(map(torch_api.was_symbolic, given)) or torch.istft in _targets(gm)
    attempts = ((Recorder, Direct()), (FunctionalRecorder, Functionalized()))
    kind = reason = ""
    for recorder, layer in attempts:
        with _tracing(), log.stage("trace"):
            try:
                made = recorder(table, fake_mode, symbolic)
                return _trace(gm, given, fake_mode, made, layer, symbolic)
            except NeedsFunctionalization as refused:
                kind, reason = "mutation", f"a mutation that cannot be taken out: {refused}"
            except (RuntimeError, AssertionError, TypeError, ArithmeticError) as error:
                # torch's own: a size that is data, a broken kernel for fakes, a quotient by zero, …
                kind, reason = "trace", _said(error)
            except Exception as error:
                if not raised_by_formula(error):
                    raise
                kind, reason = "trace", f"a custom op's gradient formula: {_said(error)}"
        log.emit("functionalized", reason=reason)
    raise Unsupported(kind, reason)


def _targets(gm: fx.GraphModule) -> set[Any]:
    return {node.target for node in gm.graph.nodes}


def _said(error: Exception) -> str:
    """What an error of torch's says, in the program's words."""
    operator = re.search(r"rule registered for HigherOrderOperator (\w+)", str(error))
    if operator and operator[1].startswith("auto_functionalized"):
        return "a custom op that writes to its arguments is not compiled"
    if operator:
        return f"{operator[1]}, an operator that takes functions, is not compiled"
    return f"{type(error).__name__}: {error}"


@contextmanager
def _tracing() -> Iterator[None]:
    """Modes as they are in a trace, and after it as before. Autograd runs its steps on this thread:
    it sorts them by numbers that each thread counts for itself, and a transform's steps for a GPU
    (`torch.func.grad`), made on another thread, would come in another order from trace to trace.
    Anomaly mode would tell of what a trace tries and gives up."""
    one_thread = torch.autograd.set_multithreading_enabled(False)
    no_anomalies = torch.autograd.set_detect_anomaly(False)
    with torch_api.preserved_modes(), torch_api.autocast_cache_off(), one_thread, no_anomalies:
        with torch_api.compiled_autograd_off():
            yield


@dataclass(frozen=True)
class _Fed:
    """An input as ``given`` and as the graph is ``fed`` it, the ``leaf`` that autograd's gradient
    of it is taken at, if any; and what was known of a tensor before the graph ran: the ``node``
    that computes it, how often it had been written to, its history to autograd. ``settled``: what
    the graph has written to it before calls."""

    given: Any
    placeholder: fx.Node
    fed: Any
    leaf: torch.Tensor | None = None
    node: fx.Node | None = None
    version: int = 0
    history: Any = None
    settled: list[fx.Node] = field(default_factory=list)


@dataclass(frozen=True)
class _Trace:
    """One run of the graph: its inputs, and the tensors that it owns, by name."""

    inputs: tuple[_Fed, ...]
    attributes: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def fed(self) -> tuple[Any, ...]:
        """What the graph is run on."""
        return tuple(each.fed for each in self.inputs)

    @property
    def leaves(self) -> dict[int, torch.Tensor]:
        """What gradients are taken at, by the input's position."""
        return {i: each.leaf for i, each in enumerate(self.inputs) if each.leaf is not None}


def _trace(
    gm: fx.GraphModule,
    given: tuple[Any, ...],
    fake_mode: Any,
    recorder: Recorder,
    layer: Direct,
    symbolic: bool,
) -> Region:
    results = Results()
    grad_enabled = torch.is_grad_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch_api.python_dispatcher() if symbolic else nullcontext())
        stack.enter_context(fake_mode)
        with RememberedFakes(fake_mode):
            fakes = [_detached(v) if isinstance(v, torch.Tensor) else v for v in given]
        trace = _Trace(_feed(given, fakes, recorder, layer, stack))
        layer.settle = recorder.settle = partial(settle, trace.inputs, recorder, layer)
        outputs = _run(gm, trace, recorder, layer)
        rules = describe_outputs(outputs, trace.fed, recorder, layer, results)
        mutations, copies = _describe_mutations(gm, trace, recorder, layer, results)
        gradients = differentiate(trace.leaves, outputs, results, recorder, layer, fake_mode)
        mark_authors(recorder.graph, gm)
    region = join_region(recorder, len(given), rules, results, mutations, copies, gradients)
    return replace(region, facts=replace(region.facts, grad_enabled=grad_enabled))


def _detached(given: torch.Tensor) -> torch.Tensor:
    """An alias without grad: of a leaf that is a view a view, since those of it that are taken
    without grad do not require grad, as those of others do."""
    is_view = given.requires_grad and given.is_leaf and torch_api.is_view(given)
    return torch.ops.aten.alias(given.detach()) if is_view else given.detach()


def _fake_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """The inputs with fakes for tensors, and the fakes' mode."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    values = []
    for position, node in enumerate(placeholders):
        value = node.meta.get("example_value", node.meta.get("val"))
        if value is None and position < len(example_inputs):
            value = example_inputs[position]
        values.append(value)
    _refuse(values)
    modes = [m for m in map(torch_api.fake_mode_of, values) if m is not None]
    fake_mode = modes[0] if modes else torch_api.new_fake_mode(values)
    fakes = [
        fake_mode.from_tensor(v)
        if isinstance(v, torch.Tensor) and torch_api.fake_mode_of(v) is None
        else v
        for v in values
    ]
    return tuple(fakes), fake_mode


def _refuse(given: Sequence[Any]) -> None:
    for value in given:
        if not isinstance(value, torch.Tensor):
            continue
        if torch_api.is_tensor_subclass(value):
            raise Unsupported("subclass", f"an input of type {type(value).__name__}")
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            raise Unsupported("layout", f"an input of layout {value.layout}")
        if value.requires_grad and value.is_inference() and torch.is_grad_enabled():
            reason = "an inference tensor requires grad: operations of such alone give no gradients"
            raise Unsupported("inference", reason)
        if value.is_conj() or value.is_neg():
            raise Unsupported("lazy-conj", "an input with a pending conjugation or negation")


def _feed(
    given: tuple[Any, ...],
    fakes: Sequence[Any],
    recorder: Recorder,
    layer: Direct,
    stack: ExitStack,
) -> tuple[_Fed, ...]:
    """Makes placeholders, enters the recorder (and functionalization if it is used), and prepares
    what the graph is run on."""
    placeholders = []
    for position, (value, fake) in enumerate(zip(given, fakes, strict=True)):
        node = recorder.placeholder(f"input_{position}", fake)
        node.meta["is_parameter"] = isinstance(value, torch.nn.Parameter)
        placeholders.append(node)
    stack.enter_context(recorder)
    layer.enter(stack)
    inputs = zip(given, placeholders, fakes, strict=True)
    return tuple([_feed_one(*each, recorder, layer) for each in inputs])


def _feed_one(
    value: Any, placeholder: fx.Node, fake: Any, recorder: Recorder, layer: Direct
) -> _Fed:
    if not isinstance(value, torch.Tensor):
        return _Fed(value, placeholder, fake)
    leaf = tensor = layer.feed(fake)
    if value.requires_grad:
        leaf.requires_grad_()
        if layer.clones_inputs() and not value.is_leaf:
            with torch.enable_grad():
                tensor = leaf.clone()
            copy, start = layer.value(tensor), fake.storage_offset()
            if type(start) is not int or start != 0 or copy.stride() != fake.stride():
                recorder.moved.add(id(copy))
    (version,), history = torch_api.versions([tensor]), tensor.grad_fn
    node = recorder.node_of(layer.value(tensor))
    wanted = leaf if value.requires_grad else None
    return _Fed(value, placeholder, tensor, wanted, node, version, history)


def _run(gm: fx.GraphModule, trace: _Trace, recorder: Recorder, layer: Direct) -> tuple[Any, ...]:
    def attribute(name: str) -> Any:
        owner, _, last = name.rpartition(".")
        value = getattr(gm.get_submodule(owner), last)
        if not isinstance(value, torch.Tensor):
            return value
        if name not in trace.attributes:
            if value.requires_grad and torch.is_grad_enabled():
                raise Unsupported("parameter-attribute", f"{name} is no input but requires grad")
            trace.attributes[name] = layer.feed(recorder.lift(value))
        return trace.attributes[name]

    def at(node: fx.Node) -> None:
        recorder.origin = node

    try:
        return run_torch_graph(gm, trace.fed, attribute, at)
    except Unsupported as refused:
        if recorder.origin is not None:
            refused.step = recorder.origin.meta.get("step")
        raise
    except RuntimeError as error:
        if "a leaf Variable that requires grad" in str(error):
            raise NeedsFunctionalization("an input that requires grad is written to") from error
        if torch_api.is_data_dependent_error(error):
            raise Unsupported("data-dependent", f"a value is needed to trace: {error}") from error
        raise
    except ValueError as error:  # of torch's form of `view` for symbolic sizes
        if "Cannot view a tensor" not in str(error):
            raise
        raise Unsupported("layout", f"eager tells whether it can be viewed so: {error}") from error


def _describe_mutations(
    gm: fx.GraphModule, trace: _Trace, recorder: Recorder, layer: Direct, results: Results
) -> tuple[tuple[Mutation, ...], list[tuple[fx.Node, fx.Node]]]:
    """Mutations of inputs, and (placeholder, final value) of those the graph itself makes."""
    mutations, copies = [], []
    given = [each.given for each in trace.inputs if isinstance(each.given, torch.Tensor)]
    storages = Counter(torch_api.memory_of(value) for value in given)
    apart = _known_apart(gm, trace)
    for index, each in enumerate(trace.inputs):
        value, fed = each.given, each.fed
        if not isinstance(value, torch.Tensor):
            continue
        final = layer.value(fed)
        if fed.shape != value.shape or fed.stride() != value.stride():
            raise Unsupported("metadata-mutation", "an input's shape or strides are changed")
        node = recorder.node_of(final)
        if node is each.node and not each.settled:
            continue
        if storages[torch_api.memory_of(value)] > 1 and index not in apart:
            raise Unsupported("overlap", "an input that is written to overlaps another input")
        _refuse_write(gm, value, final)
        if fed.grad_fn is not each.history:
            mutations.append(Mutation(index, results.add(node, fed)))
        else:  # autograd has not seen the write: under no_grad, or through detach
            counted = torch_api.versions([fed]) != [each.version]
            mutations.append(Mutation(index, counted=counted))
            if not each.settled or each.settled[-1] is not node:
                copies.append((each.placeholder, node))
    for name, tensor in trace.attributes.items():
        if recorder.node_of(layer.value(tensor)).op != "get_attr":
            raise Unsupported("constant-mutation", f"{name} is no input but is written to")
    return tuple(mutations), copies


def _known_apart(gm: fx.GraphModule, trace: _Trace) -> frozenset[int]:
    """Written inputs that guards keep from overlapping others, though they may be slices of one
    storage. None under autograd, to which slices of one tensor are written to together."""
    if torch.is_grad_enabled() and any(each.leaf is not None for each in trace.inputs):
        return frozenset()
    places = (node for node in gm.graph.nodes if node.op == "placeholder")
    return frozenset(at for at, node in enumerate(places) if node.meta.get("apart"))


def _refuse_write(gm: fx.GraphModule, value: torch.Tensor, final: torch.Tensor) -> None:
    """Raises Unsupported for an input to which its ``final`` value cannot be written as eager
    does."""
    if final.stride() != value.stride() and _may_copy(gm):  # a trace has no gaps in new values
        raise Unsupported("strided-write", "an input with gaps is written to, then reshaped")
    if _overlaps_itself(value):
        raise Unsupported("overlap", "an input that is written to overlaps itself")
    if value.is_inference() and not torch.is_inference_mode_enabled():
        raise Unsupported("inference", "an inference tensor is written to without its mode")


def _may_copy(gm: fx.GraphModule) -> bool:
    """Whether the graph calls what gives a view or a copy, as strides have it."""
    names = (getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes)
    return any(name.split(".")[0] in _VIEWS_OR_COPIES for name in names)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory, of symbolic sizes as they are now: our own capture has
    guarded that (`written_places`); where torch captured, later sizes are not asked."""
    sizes = [torch_api.hint_of(size) for size in tensor.shape]
    strides = [torch_api.hint_of(step) for step in tensor.stride()]
    extents = sorted(p for p in zip(strides, sizes, strict=True) if p[1] != 1)
    return 0 not in sizes and steps_meet(extents)
