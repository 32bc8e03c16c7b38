"""Numbers that a GPU's graph computes on the CPU become a graph of their own.

Optimizers count their steps in tensors of one element that stay on the CPU, and compute the sizes
of steps from them: ``lr / (1 - beta**step)`` for each parameter. One native function does this for
all, and the GPU gets the numbers that its kernels read as one tensor, in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.device_of_graph import device_of_graph
from jitney.graph.effects import draws_random, is_effect

aten = torch.ops.aten
FEWEST = 8  # calls on the CPU; for less a copy to the GPU and a second program are not worth it


@dataclass(frozen=True)
class SplitGraph:
    """``host`` gives (numbers, float64 of one dimension; what else ``device`` takes; results).
    ``device`` takes its inputs, what else it is given, and last the numbers, on its own device.

    ``host_inputs``, ``device_inputs``: positions among the whole graph's inputs; ``given``: how
    many results of ``host`` ``device`` takes besides the numbers. ``results``: for each result of
    the whole its place among the rest of ``host``'s and then ``device``'s.
    """

    host: fx.GraphModule
    device: fx.GraphModule
    host_inputs: tuple[int, ...]
    device_inputs: tuple[int, ...]
    given: int
    results: tuple[int, ...]
    place: torch.device


def split_host_numbers(gm: fx.GraphModule) -> SplitGraph | None:
    """The two graphs of a functional one of ATen ops; None where it stays whole: nothing of it
    runs on a GPU, or hardly anything on the CPU; a backward pass belongs to it, or it draws random
    numbers, after which a call may be given up for eager."""
    place = device_of_graph(gm)
    output = gm.graph.output_node()
    if place.type == "cpu" or "leased" in output.meta or any(map(_draws, gm.graph.nodes)):
        return None
    host = _on_host(gm.graph)
    calls = sum(node.op == "call_function" for node in host)
    others = [n for n in gm.graph.nodes if n not in host and is_effect(n)]
    written = any(given in host for node in others for given in node.all_input_nodes)
    if calls < FEWEST or written:
        return None
    split = _Split(gm, host, place)
    return split.graphs() if split.numbers else None


def _on_host(graph: fx.Graph) -> dict[fx.Node, None]:
    """What is computed on the CPU from inputs and constants of one element there, and these."""
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


class _Split:
    """The two graphs under way."""

    def __init__(self, gm: fx.GraphModule, host: dict[fx.Node, None], place: torch.device) -> None:
        self.gm, self.on_host, self.place = gm, host, place
        self.inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        results: Any = gm.graph.output_node().args[0]
        self.results = list(results)
        read = [n for n in host if any(_is_reader(user, host) for user in n.users)]
        self.numbers = [node for node in read if _is_number(node, host)]
        self.given = [
            node for node in read if node not in self.numbers and node.op != "placeholder"
        ]

    def graphs(self) -> SplitGraph:
        own = [n for n in self.results if n in self.on_host and n.op != "placeholder"]
        rest = list(dict.fromkeys(own))
        host, taken = self._host(rest)
        others = [result for result in self.results if result not in rest]
        device, inputs = self._device(others)
        places = iter(range(len(rest), len(rest) + len(others)))
        order = [rest.index(r) if r in rest else next(places) for r in self.results]
        given = len(self.given)
        return SplitGraph(host, device, taken, inputs, given, tuple(order), self.place)

    def _host(self, rest: list[fx.Node]) -> tuple[fx.GraphModule, tuple[int, ...]]:
        """Reads before it writes: inputs that are handed on hold what they held before."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.inputs:
            if node in self.on_host:
                copies[node] = graph.node_copy(node)
        written = [n for n in self.on_host if n.target is aten.copy_.default]
        for node in self.on_host:
            if node.op != "placeholder" and node not in written:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        numbers = self._packed(graph, [copies[node] for node in self.numbers])
        for node in written:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        handed = [copies[node] for node in (*self.given, *rest)]
        graph.output((numbers, *handed))
        at = tuple(i for i, node in enumerate(self.inputs) if node in self.on_host)
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
            if node.op in ("call_function", "get_attr") and node not in self.on_host:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(fx.map_arg(tuple(results), copies.__getitem__))
        graph.output_node().meta.update(self.gm.graph.output_node().meta)
        return fx.GraphModule(self.gm, graph), tuple(at)

    def _is_devices(self, node: fx.Node, results: list[Any]) -> bool:
        if node not in self.on_host or node in results:
            return True
        return node not in self.numbers and any(_is_reader(u, self.on_host) for u in node.users)

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


def _is_number(node: fx.Node, host: dict[fx.Node, None]) -> bool:
    """Whether float64 holds it and its readers on the GPU compute with it: where a tensor is, what
    else looks at it may ask."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
        return False
    readers = [user for user in node.users if _is_reader(user, host)]
    return all(_computes(user) for user in readers)


def _computes(user: fx.Node) -> bool:
    tags = getattr(user.target, "tags", ())
    return user.target is not getitem and torch.Tag.pointwise in tags


def _called(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call added to ``graph``, and what torch foretells of it."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg((args, kwargs), lambda given: given.meta["val"])
    first = next(n for n in node.all_input_nodes)
    with torch_api.fake_mode_of(first.meta["val"]):
        node.meta["val"] = target(*values[0], **values[1])
    return node
