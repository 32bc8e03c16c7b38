"""A tensor's facts as words of memory: what native code compares without calling into torch.

Where torch keeps them was found by looking for known values in sample tensors; a torch that keeps
them otherwise has none, and is asked through its C functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from jitney.native_code import read_word
from jitney.torch_api.addresses import storage_layout
from jitney.torch_api.native import (
    impl_address,
    raw_key_set,
    scalar_type,
    tensor_handle_offset,
)

Words = list[tuple[int, int]]  # address, value

#: Bytes of a TensorImpl, and of its autograd data, that are looked at.
_IMPL, _GRAD = 184, 176
#: Sizes and strides that lie inside the TensorImpl.
MOST_DIMENSIONS = 5


@dataclass(frozen=True)
class _Places:
    """Byte offsets: in the Python object, of the TensorImpl; in that, of the other facts; of the
    flag in the autograd data, which a tensor that never wanted a gradient lacks."""

    handle: int
    key_set: int
    dtype: int
    rank: int
    sizes: int
    strides: int
    autograd: int
    requires_grad: int


def fact_words(
    tensor: torch.Tensor, sizes: Sequence[int | None], strides: Sequence[int | None] | None
) -> Words | None:
    """Words that are as they are while ``tensor``, the object, is a tensor of this type, layout,
    dtype and these sizes and strides (None: any), wanting a gradient or not. None if they cannot
    be told by words."""
    places = _places()
    if places is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if tensor.dim() > MOST_DIMENSIONS:
        return None
    impl = impl_address(tensor)
    facts = [(id(tensor) + 8, id(type(tensor))), (id(tensor) + places.handle, impl)]
    where = [places.key_set, places.dtype, places.rank, places.autograd]
    for start, extents in ((places.sizes, sizes), (places.strides, strides or ())):
        where += [start + 8 * n for n, extent in enumerate(extents) if extent is not None]
    facts += [(impl + offset, read_word(impl + offset)) for offset in sorted(where)]
    grad = read_word(impl + places.autograd)
    if grad:
        facts.append((grad + places.requires_grad, read_word(grad + places.requires_grad)))
    return facts


def memory_words(tensor: torch.Tensor) -> Words | None:
    """Words that are as they are while the tensor begins where it does."""
    layout = storage_layout()
    if layout is None:
        return None
    impl, storage = impl_address(tensor), tensor.untyped_storage()
    return [
        (id(tensor) + layout.handle, impl),
        (impl + layout.storage, storage._cdata),
        (impl + layout.offset, tensor.storage_offset()),
        (storage._cdata + layout.memory, storage.data_ptr()),
    ]


@lru_cache(maxsize=1)
def _places() -> _Places | None:
    try:
        handle = tensor_handle_offset()
    except RuntimeError:
        return None
    samples = [torch.empty(n + 11, n + 23, n + 37)[:, 1:] for n in range(3)]
    samples += [torch.empty(71, 3), torch.empty(5), torch.empty(())]
    deep = samples[:3]
    key_set, rank = _offset(samples, raw_key_set), _offset(samples, lambda t: t.dim())
    sizes, strides = _offset(deep, lambda t: t.size(0)), _offset(deep, lambda t: t.stride(0))
    dtype, autograd = _dtype_offset(), _autograd_offset()
    if not (key_set and rank and sizes and strides and dtype and autograd):
        return None
    flag = _flag_offset(autograd)
    if flag is None or not _follow(deep, sizes, strides):
        return None
    return _Places(handle, key_set, dtype, rank, sizes, strides, autograd, flag)


def _only(offsets: set[int]) -> int | None:
    return offsets.pop() if len(offsets) == 1 else None


def _offset(samples: list[torch.Tensor], fact: Callable[[torch.Tensor], int]) -> int | None:
    """Where every sample has what ``fact`` says of it."""
    places = set(range(16, _IMPL, 8))
    for sample in samples:
        impl, value = impl_address(sample), fact(sample)
        places &= {o for o in places if read_word(impl + o) == value}
    return _only(places)


def _follow(samples: list[torch.Tensor], sizes: int, strides: int) -> bool:
    """Whether the other sizes and strides lie after the first."""
    for sample in samples:
        impl = impl_address(sample)
        for n in range(sample.dim()):
            if read_word(impl + sizes + 8 * n) != sample.size(n):
                return False
            if read_word(impl + strides + 8 * n) != sample.stride(n):
                return False
    return True


def _dtype_offset() -> int | None:
    """The word whose low 16 bits are the dtype's number; the device and flags share it."""
    places = set(range(16, _IMPL, 8))
    for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.float64, torch.int64):
        impl = impl_address(sample := torch.empty(0, dtype=dtype))
        places &= {o for o in places if read_word(impl + o) & 0xFFFF == scalar_type(sample.dtype)}
    return _only(places)


def _autograd_offset() -> int | None:
    """The pointer that only tensors which wanted a gradient have."""
    plain = [torch.empty(n) for n in range(1, 6)]
    wanting = [torch.empty(n, requires_grad=True) for n in range(1, 6)]
    places = set(range(16, _IMPL, 8))
    for sample in plain:
        places &= {o for o in places if read_word(impl_address(sample) + o) == 0}
    for sample in wanting:
        places &= {o for o in places if read_word(impl_address(sample) + o) > 1 << 16}
    return _only(places)


def _flag_offset(autograd: int) -> int | None:
    """The word of the autograd data that says whether a gradient is wanted."""
    sample = torch.empty(3, requires_grad=True)
    grad, seen = read_word(impl_address(sample) + autograd), []
    for wanted in (True, False, True, False):
        sample.requires_grad_(wanted)
        if read_word(impl_address(sample) + autograd) != grad:
            return None
        seen.append([read_word(grad + o) for o in range(0, _GRAD, 8)])
    changed = {8 * n for n, words in enumerate(zip(*seen, strict=True)) if words[0] != words[1]}
    stable = seen[0] == seen[2] and seen[1] == seen[3]
    return _only(changed) if stable else None
