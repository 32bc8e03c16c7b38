"""`torch.masked`: reductions over the elements that a mask keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_masked_tensor(value: Any) -> bool:
    """Whether it is a `torch.masked.MaskedTensor`."""
    from torch.masked.maskedtensor.core import is_masked_tensor as test

    return bool(test(value))


def fill_masked_out(
    op: Callable[..., Any], x: torch.Tensor, mask: torch.Tensor | None, *args: Any
) -> torch.Tensor:
    """``x`` with the identity of ``op`` where ``mask`` (broadcastable, bool) is false.

    What `torch.masked._ops._combine_input_and_mask` does for a plain tensor, without the
    autograd function for masked tensors that it defines at every call.
    """
    from torch.masked import _ops as masked

    if mask is None:
        return x
    keep = masked._input_mask(x, mask=mask)
    filled: torch.Tensor = masked._where(keep, x, masked._reduction_identity(op.__name__, x, *args))
    return filled
