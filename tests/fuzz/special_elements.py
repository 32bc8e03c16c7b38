"""Elements that sums of small whole numbers never meet."""

from __future__ import annotations

import torch
from torch import Tensor

_SPECIAL = (torch.inf, -torch.inf, torch.nan, -0.0)


def with_special_elements(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A copy of a float tensor with some elements, drawn on the CPU, one of `_SPECIAL`; another
    tensor itself."""
    if not tensor.is_floating_point():
        return tensor
    drawn = torch.randint(0, 12, tensor.shape, generator=generator, device="cpu")
    drawn = drawn.to(tensor.device)
    for number, value in enumerate(_SPECIAL):
        tensor = tensor.masked_fill(drawn == number, value)
    return tensor
