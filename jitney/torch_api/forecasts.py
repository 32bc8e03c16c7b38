"""What torch foretells wrongly of a result, in some of the versions that are supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from jitney.torch_api.modes import dispatch_modes_off

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_shape_unforeseen(op: Any) -> bool:
    """Whether fake tensors give a shape where only values could tell (torch 2.11)."""
    return str(op) == "aten._unique.default"


def forecast(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What ``op`` gives for fake tensors, as eager shapes it: a loss of one row is a number."""
    out = op(*args, **kwargs)
    if op is torch.ops.aten.multilabel_margin_loss_forward.default and args[0].dim() < 2:
        return out[0].new_empty(()), out[1]
    return out


def is_layout_unforeseen(op: Any) -> bool:
    """Whether eager's strides are others than a fake result's: transforms before torch 2.13."""
    return _VERSION < (2, 13) and op._opname in ("_fft_c2c", "_fft_r2c", "_fft_c2r")


def laid_out_by_eager(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], fake: Any) -> Any:
    """``fake`` with the strides that eager gives, which is asked; as it is if sizes are symbols."""

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()

    tensors = [fake, *(a for a in args if isinstance(a, torch.Tensor))]
    sizes = [size for t in tensors for size in (*t.shape, *t.stride())]
    if any(type(size) is not int for size in sizes) or fake.device.type != "cpu":
        return fake
    with dispatch_modes_off(), torch.no_grad():
        strides = op(*tree_map(real, args), **tree_map(real, dict(kwargs))).stride()
    return fake.new_empty_strided(fake.shape, strides)
