"""On a GPU, adding a convolution's bias and summing its gradient are separate ops.

Eager's cuDNN path does both in passes over the whole result. As ops of the graph, the addition
fuses with what reads the result (a norm, an activation), and the sum with what makes the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """x [n, c, …], weight [out channels, c / groups, …], bias [out channels]."""
    if bias is None or not x.is_cuda or _rounds_once(x, groups):
        return NotImplemented
    steps = (stride, padding, dilation, transposed, output_padding, groups)
    product = aten.convolution.default(x, weight, None, *steps)
    return product + bias.reshape(-1, *[1] * (product.dim() - 2))


def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Gradients | Any:
    """``wanted``: of x, weight and bias. The bias's is the sum over all but the channels."""
    if not wanted[2] or not grad.is_cuda:
        return NotImplemented
    bias = grad.sum((0, *range(2, grad.dim())))
    if not (wanted[0] or wanted[1]):
        return None, None, bias
    steps = (stride, padding, dilation, transposed, output_padding, groups)
    rest = [wanted[0], wanted[1], False]
    image, filters, _ = aten.convolution_backward.default(grad, x, weight, None, *steps, rest)
    return image, filters, bias


def _rounds_once(x: torch.Tensor, groups: int) -> bool:
    """Whether eager's kernel is the one that adds the bias before it rounds: of 16-bit images
    with a channel a group, whose channels do not lie together."""
    alone = groups > 1 and groups == x.shape[1]
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return alone and x.element_size() == 2 and not last
