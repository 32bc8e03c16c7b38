"""Numbers that a GPU's graph computes on the CPU become a graph of their own.

Optimizers count their steps in tensors of one element that stay on the CPU, and compute the sizes
of steps from them: ``lr / (1 - beta**step)`` for each parameter. One native function does this for
all, and the GPU gets the numbers that its kernels read as one tensor, in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.device_of_graph import device_of_graph
from jitney.graph.effects import draws_random, is_effect, memory_owner

aten = torch.ops.aten
FEWEST = 8  # calls on the CPU; for less a copy to the GPU and a second program are not worth it


@dataclass(frozen=True)
class Wiring:
    """How two graphs make up the whole: positions among its inputs of those that each takes; how
    many results of the host's the device's takes besides the numbers; for each result of the whole
    its place among the rest of the host's and then the device's; which device it is."""

    host_inputs: tuple[int, ...]
    device_inputs: tuple[int, ...]
    given: int
    results: tuple[int, ...]
    place: torch.device


@dataclass(frozen=True)
class SplitGraph:
    """``host`` gives (numbers, float64 of one dimension; what else ``device`` takes; results).
    ``device`` takes its inputs, what else it is given, and last the numbers, on its own device."""

    host: fx.GraphModule
    device: fx.GraphModule
    wiring: Wiring


def split_host_numbers(gm: fx.GraphModule) -> SplitGraph | None:
    """The two graphs of a functional one of ATen ops; None where it stays whole: nothing of it
    runs on a GPU, or hardly anything on the CPU; one writes what the other reads; a backward pass
    belongs to it, or it draws random numbers, after which a call may be given up for eager."""
    place = device_of_graph(gm)
    output = gm.graph.output_node()
    if place.type == "cpu" or "leased" in output.meta or any(map(_draws, gm.graph.nodes)):
        return None
    host = on_host(gm.graph)
    calls = sum(node.op == "call_function" for node in host)
    others = [n for n in gm.graph.nodes if n not in host and is_effect(n)]
    if calls < FEWEST or any(given in host for node in others for given in node.all_input_nodes):
        return None
    split = Split(gm, host, place)
    written = {node.args[0] for node in host if node.target is aten.copy_.default}
    late = any(memory_owner(node) in written for node in split.handed)  # it is written to by then
    return split.graphs() if split.numbers and not late else None


def on_host(graph: fx.Graph) -> dict[fx.Node, None]:
    """The nodes computed on the CPU from inputs and constants of one element there, and these
    themselves."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "output" or not _is_on_cpu(node.meta.get("val")):
            continue
        inputs = node.all_input_nodes
        if node.op != "call_function" and node.meta["val"].numel() != 1:
            continue
        writes = is_effect(node) and node.target is not aten.copy_.default
        if not writes and all(given in found for given in inputs):
            found[node] = None
    return found


def _is_on_cpu(value: Any) -> bool:
    """Whether it is a tensor on the CPU, of a size that no symbol is part of, or several."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_on_cpu, value))
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return False
    return all(type(size) is int for size in (*value.shape, *value.stride()))


def _draws(node: fx.Node) -> bool:
    return node.op == "call_function" and draws_random(node.target, node.args, node.kwargs)


class Split:
    """The two graphs under way."""

    def __init__(self, gm: fx.GraphModule, host: dict[fx.Node, None], place: torch.device) -> None:
        self.gm, self.by_host, self.place = gm, host, place
        self.inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        results: Any = gm.graph.output_node().args[0]
        self.results = list(results)
        read = [n for n in host if any(_is_reader(user, host) for user in n.users)]
        self.numbers = [node for node in read if self._is_number(node)]
        self.handed = [node for node in read if node not in self.numbers]
        self.given = [node for node in self.handed if node.op != "placeholder"]

    def _is_number(self, node: fx.Node) -> bool:
        """Whether float64 holds it and its readers compute with it, on the GPU: where a tensor is,
        what else looks at it may ask."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            return False
        return all(self._computes(u) for u in node.users if _is_reader(u, self.by_host))

    def _computes(self, user: fx.Node) -> bool:
        value = user.meta.get("val")
        on_gpu = isinstance(value, torch.Tensor) and value.device == self.place
        return on_gpu and torch.Tag.pointwise in getattr(user.target, "tags", ())

    def graphs(self) -> SplitGraph:
        """The graphs of the host and of the device, and how they are wired."""
        own = [n for n in self.results if n in self.by_host and n.op != "placeholder"]
        rest = list(dict.fromkeys(own))
        host, taken = self._host(rest)
        others = [result for result in self.results if result not in rest]
        device, inputs = self._device(others)
        places = iter(range(len(rest), len(rest) + len(others)))
        order = [rest.index(r) if r in rest else next(places) for r in self.results]
        wiring = Wiring(taken, inputs, len(self.given), tuple(order), self.place)
        return SplitGraph(host, device, wiring)

    def _host(self, rest: list[fx.Node]) -> tuple[fx.GraphModule, tuple[int, ...]]:
        """Reads before it writes: inputs that are handed on hold what they held before."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.inputs:
            if node in self.by_host:
                copies[node] = graph.node_copy(node)
        written = [n for n in self.by_host if n.target is aten.copy_.default]
        for node in self.by_host:
            if node.op != "placeholder" and node not in written:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        numbers = self._packed(graph, [copies[node] for node in self.numbers])
        for node in written:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        handed = [copies[node] for node in (*self.given, *rest)]
        graph.output((numbers, *handed))
        at = tuple(i for i, node in enumerate(self.inputs) if node in self.by_host)
        return fx.GraphModule(self.gm, graph), at

    def _packed(self, graph: fx.Graph, numbers: list[fx.Node]) -> fx.Node:
        wide = []
        for node in numbers:
            if node.meta["val"].dtype != torch.float64:
                node = _called(graph, aten._to_copy.default, node, dtype=torch.float64)
            wide.append(_called(graph, aten.view.default, node, [1]))
        return _called(graph, aten.cat.default, wide)

    def _device(self, results: list[Any]) -> tuple[fx.GraphModule, tuple[int, ...]]:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        at = [i for i, node in enumerate(self.inputs) if self._is_devices(node, results)]
        for node in (*(self.inputs[i] for i in at), *self.given):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        self._unpack(graph, copies)
        for node in self.gm.graph.nodes:
            if node.op in ("call_function", "get_attr") and node not in self.by_host:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(fx.map_arg(tuple(results), copies.__getitem__))
        graph.output_node().meta.update(self.gm.graph.output_node().meta)
        return fx.GraphModule(self.gm, graph), tuple(at)

    def _is_devices(self, node: fx.Node, results: list[Any]) -> bool:
        return node not in self.by_host or node in results or node in self.handed

    def _unpack(self, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        packed = graph.placeholder("numbers_of_host")
        with torch_api.fake_mode_of(self.inputs[0].meta["val"]):
            packed.meta["val"] = torch.empty(
                len(self.numbers), dtype=torch.float64, device=self.place
            )
        for position, node in enumerate(self.numbers):
            number = _called(graph, aten.select.int, packed, 0, position)
            dtype = node.meta["val"].dtype
            if dtype != torch.float64:
                number = _called(graph, aten._to_copy.default, number, dtype=dtype)
            copies[node] = number


def _is_reader(user: fx.Node, host: dict[fx.Node, None]) -> bool:
    return user not in host and user.op != "output"


def _called(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call added to ``graph``, with torch's prediction of its result."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg((args, kwargs), lambda given: given.meta["val"])
    first = next(n for n in node.all_input_nodes)
    with torch_api.fake_mode_of(first.meta["val"]):
        node.meta["val"] = target(*values[0], **values[1])
    return node
