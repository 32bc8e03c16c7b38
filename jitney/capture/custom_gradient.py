"""The node that gives values computed in a graph the gradient their author wrote."""

from __future__ import annotations

from typing import Any

import torch


class CustomGradient:
    """``call(*outputs, *inputs, *used) -> outputs``, whose gradients by ``inputs`` are what
    ``backward(*used, *gradients of outputs)`` returns.

    ``outputs`` were computed from ``inputs`` under no_grad; ``fixed``: positions of those that
    have no gradient.
    """

    def __init__(
        self,
        name: str,
        backward: torch.fx.GraphModule,
        outputs: int,
        inputs: int,
        fixed: tuple[int, ...],
    ) -> None:
        self.__name__, self.__module__ = name, __name__
        self.backward, self.outputs, self.inputs, self.fixed = backward, outputs, inputs, fixed

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return _Attached.apply(self, *tensors)


class _Attached(torch.autograd.Function):
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
        found = rule.backward(*ctx.saved_tensors, *gradients)
        return (None, *[None] * rule.outputs, *found, *[None] * len(ctx.saved_tensors))
