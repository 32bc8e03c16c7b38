"""Tensors made directly from memory, without the dispatcher: no active mode sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_MAKERS: Any = torch._C._dynamo.guards


def empty_tensor(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU with undefined elements."""
    return _MAKERS._empty_strided_cpu(shape, strides, dtype)


def maker_of_empty(
    device: torch.device,
) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """As `empty_tensor`, for a device, as a function of ``(shape, strides, dtype)``; a GPU is the
    one that is current when the function is called."""
    made = _MAKERS._empty_strided_cpu if device.type == "cpu" else _MAKERS._empty_strided_cuda
    return made


def same_memory(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor of its own on the memory of another: no view of it, with a version of its own."""
    return _MAKERS._reinterpret_tensor(tensor, tuple(shape), tuple(strides), 0)


def memory_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor looks at: the same number for all that share it."""
    return int(tensor.untyped_storage()._cdata)


def owners_of(storage: torch.UntypedStorage) -> int:
    """How many C++ owners a storage has: its tensors and its Python object."""
    return int(torch._C._storage_Use_Count(storage._cdata))
