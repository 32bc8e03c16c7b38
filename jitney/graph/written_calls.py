"""Calls of authors' ops that write to their arguments, as calls that give new values
(`torch_api.written_ops`): what owns the memory goes in, and its new value comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload
from jitney.torch_api.triton_kernels import is_launch
from jitney.torch_api.written_ops import all_results, emptied, functional_form_of, places_among

#: (what the call gives in eager, the owners of what it writes to, their new values)
Called = tuple[Any, list[torch.Tensor], list[torch.Tensor]]


def call_functional(
    op: OpOverload,
    args: Any,
    kwargs: Any,
    owner: Callable[[torch.Tensor], torch.Tensor],
    value_of: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Called:
    """Calls the functional form of ``op``. ``owner``: the tensor whose memory another one is in;
    ``value_of``: what a tensor of a functionalized graph is now."""
    form = functional_form_of(op)
    if form is None:
        raise Unsupported("custom-op", f"{op} gives or writes to what no graph holds")
    bases, places = places_among(op, args, kwargs, owner, value_of)
    given, named = emptied(op, args, kwargs, places)
    _refuse_kinds(op, bases, args, kwargs, owner, value_of)
    numbers = [number for place in places for number in place.numbers()]
    with torch.no_grad():
        made = form(bases, numbers, *given, **named)
    if not is_launch(op):  # autograd does not count what a kernel writes
        torch_api.bump_versions(tuple(bases))
    count = len(made) - len(bases)
    return all_results(op, made[:count], args, kwargs), bases, list(made[count:])


def _refuse_kinds(
    op: OpOverload,
    bases: list[torch.Tensor],
    args: Any,
    kwargs: Any,
    owner: Callable[[torch.Tensor], torch.Tensor],
    value_of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Raises Unsupported for parts of bases that are no strided views of them, and for bases that
    share memory all the same."""
    memory = [torch_api.memory_of(base) for base in bases]
    for argument in (*args, *kwargs.values()):
        for tensor in argument if isinstance(argument, list | tuple) else (argument,):
            if not isinstance(tensor, torch.Tensor):
                continue
            base, shared = owner(tensor), torch_api.memory_of(tensor) in memory
            if shared and not any(base is b for b in bases) or len(set(memory)) < len(memory):
                raise Unsupported("custom-op", f"{op} is given tensors that share memory unseen")
            lazy = tensor.is_conj() != base.is_conj() or tensor.is_neg() != base.is_neg()
            lazy |= torch_api.memory_of(value_of(tensor)) != torch_api.memory_of(value_of(base))
            if shared and (lazy or tensor.dtype is not base.dtype):
                raise Unsupported("custom-op", f"{op} writes to what is no strided view")


def retaken(graph: fx.Graph, view: fx.Node, old: fx.Node, new: fx.Node) -> fx.Node:
    """The views from ``old`` to ``view`` taken again, of ``new``."""
    if view is old:
        return new
    args = view.args[1:]
    source = view.args[0]
    if not isinstance(source, fx.Node):
        raise Unsupported("custom-op", f"{view} is no view of what an op writes to")
    again = retaken(graph, source, old, new)
    node = graph.create_node(view.op, view.target, (again, *args), view.kwargs, view.name)
    node.meta = dict(view.meta)
    part = node.meta.get("part")
    if part is not None:
        whole = retaken(graph, part.args[0], old, new)
        node.meta["part"] = replace(part, args=(whole, *part.args[1:]))
    return node
