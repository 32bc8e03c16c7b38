"""The end of a capture: the graph is closed and its inputs' last guards are added."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.frame import BreakCapture, Restart
from jitney.capture.guard import Apart, Kind, TensorFacts
from jitney.capture.record import Recorder, has_convolution
from jitney.capture.result import GraphInput
from jitney.capture.source import Function, SizeOf
from jitney.errors import LIBRARY_ERRORS, LeftToEager, RerunOn, WrongForecast

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def finish_graph(
    recorder: Recorder, outputs: list[Any]
) -> tuple[torch.fx.GraphModule | None, tuple[GraphInput, ...]]:
    """(the graph, None if it computes nothing; its inputs): returns ``outputs`` as a tuple."""
    graph = recorder.graph
    _remove_unused_items(graph, set(outputs))
    end = graph.output(tuple(outputs))
    end.meta["example_value"] = tuple([n.meta.get("example_value") for n in outputs])
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    inputs = []
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if node.users or _has_symbols(recorder.inputs[node].example):
                recorder.show_as_given(node)
                inputs.append(recorder.inputs[node])
            else:
                graph.erase_node(node)
    if not calls and not outputs:
        return None, ()
    return torch_api.graph_module({}, graph), tuple(inputs)


def _has_symbols(example: Any) -> bool:
    """Whether a symbol may be read from an input, which its guards then need."""
    if not isinstance(example, torch.Tensor):
        return True
    return any(isinstance(s, torch.SymInt) for s in (*example.shape, *example.stride()))


def _remove_unused_items(graph: torch.fx.Graph, kept: set[Any]) -> None:
    """Drops ``getitem`` nodes of results that were never used."""
    for node in reversed(list(graph.nodes)):
        if node.target is leaves.getitem and not node.users and node not in kept:
            if node.meta.get("part"):
                graph.erase_node(node)


def errors_without_trace(
    recorder: Recorder, graph: torch.fx.GraphModule | None, inputs: tuple[GraphInput, ...]
) -> RerunOn:
    """The errors that the graph may raise without anyone noticing that it has run. Only
    `LeftToEager`, which comes before all that it does, if it calls code that is not torch's own, or
    writes inputs that are not put back (`inputs_put_back`)."""
    if graph is None:
        return ()
    writes = any(recorder.is_mutated(given.example) for given in inputs)
    if recorder.calls_authors or (writes and not recorder.error_is_handled):
        return (LeftToEager,)
    return (LeftToEager, WrongForecast, *LIBRARY_ERRORS)


def inputs_put_back(
    recorder: Recorder, inputs: tuple[GraphInput, ...], rerun_on: RerunOn
) -> tuple[int, ...]:
    """The positions of the inputs that are restored where the graph raises one of ``rerun_on``:
    those that it writes to, if the frame handles an error of a library's call."""
    if not (recorder.error_is_handled and rerun_on):
        return ()
    return tuple(i for i, given in enumerate(inputs) if recorder.is_mutated(given.example))


def add_input_guards(
    vm: Interpreter, graph: torch.fx.GraphModule | None, inputs: tuple[GraphInput, ...]
) -> None:
    """Inputs written to share memory with the others as at capture, mostly with none.
    Those of which that is known have ``meta["apart"]`` in ``graph``: they may be slices of one
    storage all the same. Raises `Restart` where one shares memory with a tensor of another
    storage (two made from one NumPy array): a graph knows views by their storage."""
    tensors = [x for x in inputs if isinstance(x.example, torch.Tensor)]
    reals = [vm.tensors.real[id(x.example)][1] for x in tensors]
    written = [n for n, x in enumerate(tensors) if vm.recorder.is_mutated(x.example)]
    if not written or len(tensors) == 1:
        return
    together = torch_api.overlaps([torch_api.span(real) for real in reals], set(written))
    for pair in together:
        one, other = (tensors[at] for at in pair)
        if torch_api.memory_of(one.example) != torch_api.memory_of(other.example):
            reason = f"{one.source} and {other.source} share memory, but no storage"
            raise Restart(0, BreakCapture("foreign-memory", reason, "clone() one of them"))
    static = len(tensors) == len(inputs)
    sources = tuple(x.source for x in tensors)
    if graph is not None:
        meeting = {at for pair in together for at in pair}
        apart_names = {tensors[at].name for at in written if at not in meeting}
        for node in graph.graph.nodes:
            if node.op == "placeholder" and node.target in apart_names:
                node.meta["apart"] = True
    apart = Apart(sources, frozenset(written), frozenset(together), static)
    vm.world.guard(Kind.NO_OVERLAP, tensors[written[0]].source, apart)


def guard_places(vm: Interpreter) -> None:
    """Guards that inputs begin at the same offset in their storage, if the frame depends on
    offsets."""
    if not vm.recorder.places_asked:
        return
    for given in vm.recorder.inputs.values():
        if isinstance(given.example, torch.Tensor):
            offset = given.example.storage_offset()
            if isinstance(offset, int):  # else `guards_of_shapes` sees to it
                vm.world.guard(Kind.EQUALS, SizeOf(given.source, "storage_offset"), offset)


def guard_gpu(vm: Interpreter) -> None:
    """Guards that the current GPU is the same, if the frame asked for it or used ``"cuda"``."""
    if vm.recorder.gpu_asked:
        value = torch_api.read_state("cuda_device")
        vm.world.guard(Kind.STATE, Function(), ("cuda_device", value), "cuda_device")


def forget_idle_strides(vm: Interpreter) -> None:
    """No guard on strides that address nothing: of dimensions of size 1, of empty tensors.

    Kept where they can be seen all the same: the frame asked for strides, or torch may take a
    memory format from them (images; convolutions, which make images of anything).
    """
    if vm.recorder.strides_asked or has_convolution(vm.recorder.graph):
        return
    guards = vm.world.guards
    for key, guard in guards.items():
        if guard.kind is Kind.TENSOR and len(guard.expected.sizes) < 4:
            facts = guard.expected
            strides = _busy_strides(facts)
            if strides != facts.strides:
                guards[key] = replace(guard, expected=replace(facts, strides=strides))


def _busy_strides(facts: TensorFacts) -> tuple[int | None, ...] | None:
    if facts.strides is None:
        return None
    empty = 0 in facts.sizes
    pairs = zip(facts.sizes, facts.strides, strict=True)
    return tuple([None if empty or size == 1 else stride for size, stride in pairs])
