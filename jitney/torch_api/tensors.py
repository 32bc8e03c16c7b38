"""Tensors: kinds, memory, versions, autograd nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_tensor_subclass(value: torch.Tensor) -> bool:
    """A subclass that is neither Parameter nor FakeTensor: it may redefine what ops mean."""
    return type(value).__name__ != "FakeTensor" and type(value) not in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    )


def bump_version(tensor: torch.Tensor) -> None:
    """Tells autograd that ``tensor`` was written to (inference tensors keep no version)."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def no_overlap(tensor: torch.Tensor, others: tuple[torch.Tensor, ...]) -> bool:
    """Whether the memory ``tensor`` spans is apart from that of each of ``others``."""
    start, end = _span(tensor)
    for other in others:
        low, high = _span(other)
        if low < end and start < high:
            return False
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def not_differentiable(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same gradients, made under ``create_graph``: differentiating them raises."""
    message = "trying to differentiate twice a function that was compiled to be differentiated once"
    tensors = [g.detach().requires_grad_() for g in gradients if g is not None]
    marked = torch._C._functions.DelayedError(message.encode(), len(tensors))(*tensors)
    supply = iter((marked,) if isinstance(marked, torch.Tensor) else marked)
    return tuple(None if g is None else next(supply) for g in gradients)


def node_apply(function: Any) -> Callable[..., Any]:
    """``function.apply`` without the Python part that only functorch transforms need."""
    apply: Callable[..., Any] = torch._C._FunctionBase.__dict__["apply"].__get__(None, function)
    return apply
