"""The node that gives values computed in a graph the gradient their author wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api


@dataclass(frozen=True)
class Kept:
    """The ``index``-th of the tensors that a `CustomGradient` is given to use."""

    index: int


@dataclass(frozen=True)
class Author:
    """A class with a ``backward``, and the attributes of the ``ctx`` it is to be given: numbers,
    `Kept` tensors, and tuples, lists and dicts of them. ``tensors``: which of its forward's results
    are tensors; ``wanted``: which of the gradients that it returns are asked for."""

    cls: Any
    context: type
    attributes: Mapping[str, Any]
    tensors: tuple[bool, ...]
    wanted: tuple[bool, ...]

    def gradients(self, kept: tuple[torch.Tensor, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
        """What ``backward`` returns, for the wanted inputs."""
        context = self.context()
        for name, value in self.attributes.items():
            setattr(context, name, _filled_in(value, kept))
        each = iter(given)
        found = self.cls.backward(
            context, *[next(each) if is_one else None for is_one in self.tensors]
        )
        found, inputs = by_inputs(found, len(self.wanted)), len(self.wanted)
        if len(found) != inputs:
            what = f"an incorrect number of gradients (expected {inputs}, got {len(found)})"
            raise RuntimeError(f"function {self.cls.__name__}Backward returned {what}")
        return tuple([x for x, want in zip(found, self.wanted, strict=True) if want])


def by_inputs(found: Any, inputs: int) -> tuple[Any, ...]:
    """What a ``backward`` returns as a tuple, without what is more than there are ``inputs``: torch
    takes that, if it is None."""
    found = found if isinstance(found, tuple) else (found,)
    return found[:inputs] if all(x is None for x in found[inputs:]) else found


def _filled_in(value: Any, kept: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(value, Kept):
        return kept[value.index]
    if isinstance(value, dict):
        return {key: _filled_in(item, kept) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_filled_in(item, kept) for item in value])
    return value


@dataclass(frozen=True, eq=False)
class CustomGradient:
    """``call(*outputs, *inputs, *used) -> outputs``, whose gradients by ``inputs`` are what
    ``backward(*used, *gradients of outputs)`` returns: a graph, in which others can inline it. In
    eager the ``author``'s own function runs instead, where it is known.

    ``outputs`` were computed from ``inputs`` under no_grad; ``fixed``: positions of those that
    have no gradient. ``holds`` tells whether what the author's function reads of the program is
    what the graph was made for.
    """

    name: str
    backward: torch.fx.GraphModule
    outputs: int
    inputs: int
    fixed: tuple[int, ...]
    author: Author | None = None
    holds: Callable[[], bool] | None = None

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """``tensors``: outputs, inputs, then what ``backward`` needs; the outputs with the rule."""
        eager = all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)
        rule = _ByAuthor if eager and self.author is not None else _ByGraph
        return rule.apply(self, *tensors)


class _ByGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: CustomGradient, *tensors: torch.Tensor) -> Any:
        ctx.rule = rule
        ctx.save_for_backward(*tensors[rule.outputs + rule.inputs :])
        # No views: what a Function returns of its own may be written in place, in part too.
        outputs = tuple([x.detach() for x in tensors[: rule.outputs]])
        ctx.mark_non_differentiable(*[outputs[i] for i in rule.fixed])
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rule = ctx.rule
        found = torch_api.run_with_reach(rule.backward, ctx.saved_tensors, gradients)
        return (None, *[None] * rule.outputs, *found, *[None] * len(ctx.saved_tensors))


class _ByAuthor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: CustomGradient, *tensors: torch.Tensor) -> Any:
        ctx.rule = rule
        outputs = tuple([x.detach() for x in tensors[: rule.outputs]])
        returned = {id(x): output for x, output in zip(tensors, outputs, strict=False)}
        used = tensors[rule.outputs + rule.inputs :]
        ctx.save_for_backward(*[returned.get(id(x), x) for x in used])
        ctx.mark_non_differentiable(*[outputs[i] for i in rule.fixed])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rule = ctx.rule
        found = rule.author.gradients(ctx.saved_tensors, gradients)
        return (None, *[None] * rule.outputs, *found, *[None] * len(ctx.saved_tensors))
