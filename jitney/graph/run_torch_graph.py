"""Runs a torch-level graph node by node, so that what is recorded knows where it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.program_lines import call_again
from jitney.errors import Unsupported
from jitney.graph.check_values import check_values

#: They hold 32 bits of a symbolic number's value alone, whichever dtype they make.
_CUT_SHORT = frozenset("tensor as_tensor asarray new_tensor".split())


def run_torch_graph(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    attribute: Callable[[str], Any],
    at: Callable[[fx.Node], None],
) -> tuple[Any, ...]:
    """The flat tuple ``gm`` returns for ``inputs``; ``at`` is told of each node before it runs.

    ``attribute`` gives the value of a ``get_attr`` node. Raises Unsupported for a graph that does
    not return a flat tuple or list.
    """
    values: dict[fx.Node, Any] = {}
    supply = iter(inputs)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(supply)
            continue
        if node.op == "get_attr":
            values[node] = attribute(node.target)
            continue
        args, kwargs = _values_of(node.args, values), _values_of(node.kwargs, values)
        if node.op == "output":
            return flat(args[0])
        at(node)
        check_values(node.target, args, kwargs)
        values[node] = _call(gm, node, args, kwargs)
    raise Unsupported("no-output", "a graph without an output node")


def _call(gm: fx.GraphModule, node: fx.Node, args: Any, kwargs: Any) -> Any:
    if getattr(node.target, "__name__", node.target) in _CUT_SHORT:
        args, kwargs = _with_numbers(args), _with_numbers(kwargs)
    if node.op == "call_function":
        optimizer = torch_api.fused_step(node.target)
        if optimizer is not None:
            raise Unsupported("fused-step", f"a fused {optimizer} step runs as torch's own kernel")
        called = torch_api.called_on_fakes(node.target)
    elif node.op == "call_method":
        called, args = getattr(args[0], str(node.target)), args[1:]
    else:
        called = gm.get_submodule(str(node.target))
    lines = node.meta.get("lines", ())  # none where another capture made the graph
    return call_again(lines, called, args, kwargs)


def _values_of(value: Any, values: dict[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, tuple):
        items = [_values_of(item, values) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_values_of(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _values_of(item, values) for key, item in value.items()}
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(_values_of(part, values) for part in parts))
    return value


def _with_numbers(value: Any) -> Any:
    """The arguments with ints for symbolic ones, which guards them, as these functions do
    themselves."""
    return fx.node.map_aggregate(value, _number)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, torch.SymInt) else value


def flat(result: Any) -> tuple[Any, ...]:
    """What a graph returns as a flat tuple. Raises Unsupported where it is nested."""
    if not isinstance(result, tuple | list):
        return (result,)
    if any(isinstance(item, tuple | list | dict) for item in result):
        raise Unsupported("nested-output", "a graph whose outputs are nested")
    return tuple(result)
