"""Floats and truth values among a graph's results, computed in Python beside the compiled graph.

Backends compile tensors. Such results come from sizes and from numbers that the graph was given,
in a few operations that a small graph of their own runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from jitney.errors import Unsupported

Compiled = Callable[..., Any]
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def compute_scalars_apart(
    gm: fx.GraphModule, start: Callable[[fx.GraphModule], Callable[[], Compiled]]
) -> Callable[[], Compiled]:
    """``start(gm)``, which gives what finishes a compile, but for symbolic floats and truth values
    among ``gm``'s results: they are taken out of it and put back by each call. Raises Unsupported
    if one depends on data."""
    output = gm.graph.output_node()
    results: Any = output.args[0]
    apart = [i for i, result in enumerate(results) if _is_scalar(result)]
    if not apart:
        return start(gm)
    numbers = _numbers(gm.graph)
    scalars = _graph_of(gm, [results[i] for i in apart], numbers)
    output.args = (tuple(r for i, r in enumerate(results) if i not in apart),)
    stay = ("placeholder", "output")
    gm.graph.eliminate_dead_code(lambda node: node.op in stay or node not in numbers)
    gm.recompile()
    is_empty = not any(node.op.startswith("call") for node in gm.graph.nodes)
    finish = (lambda: gm.forward) if is_empty else start(gm)
    return lambda: _with_scalars(finish(), apart, scalars)


def _with_scalars(run: Compiled, apart: list[int], scalars: Compiled) -> Compiled:
    def call(*inputs: Any) -> tuple[Any, ...]:
        values = list(run(*inputs))
        for position, value in zip(apart, scalars(*inputs), strict=True):
            values.insert(position, value)
        return tuple(values)

    return call


def _is_scalar(result: Any) -> bool:
    value = result.meta.get("example_value") if isinstance(result, fx.Node) else None
    return isinstance(value, torch.SymFloat | torch.SymBool)


def _numbers(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that only do arithmetic on numbers, or read a size."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("example_value")
        inputs = node.all_input_nodes  # a setting has none: `_set_grad_enabled(False)` stays
        from_numbers = bool(inputs) and found.issuperset(inputs)
        if isinstance(value, _NUMBERS) or (value is None and from_numbers):
            found.add(node)
    return found


def _graph_of(gm: fx.GraphModule, results: list[fx.Node], numbers: set[fx.Node]) -> fx.GraphModule:
    """A graph with ``gm``'s inputs that computes ``results`` alone."""
    needed = set(results)
    for node in reversed(gm.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            if node.op != "placeholder" and node not in numbers:
                raise Unsupported("scalar-output", f"a number is computed by {node.target}")
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[result] for result in results))
    return fx.GraphModule(torch.nn.Module(), graph)
