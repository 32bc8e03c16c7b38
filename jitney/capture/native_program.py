"""Programs of the native guard check, as data: instructions, their operands, where tensors lie.

A program is a list of four-word instructions over slots that start as the call's arguments; see
`Op`. `arm_guards` writes programs, `native_check` runs them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.layouts import read_word

SLOTS = 4096
ANY = -(1 << 63)  # a size or stride that may be anything
REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
EXTENTS = ("aoti_torch_get_sizes", "aoti_torch_get_strides")
#: What the check calls of torch.
TORCH_CALLS = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_index",
    "aoti_torch_get_dim",
    *EXTENTS,
    REQUIRES_GRAD,
)


class Op(enum.IntEnum):
    """Instructions ``(op, a, b, c)``; s[i] is a slot, *x the 8 bytes at x, all integers 64-bit."""

    END = 0  # all holds
    IS = 1  # s[a] == b
    FIELD = 2  # *(s[a] + b) == c
    WORDS = 3  # *x == y for the n pairs in words a, in order: [n, x, y, …]
    LOAD = 4  # s[c] = *(s[a] + b); fails on NULL
    LOAD2 = 5  # s[c] = *(*(s[a] + 24) + b): an item of a list
    DICT_ITEM = 6  # s[c] = dict s[a] [b]; fails if absent
    DICT_KEYS = 7  # the keys of dict s[a] are the n objects in words b: [n, key, …]
    EQUAL = 8  # s[a] is b, or an int, str or float of the same type and value
    TENSOR = 9  # tensor s[a] is as words b say: see `tensor_words`
    CONST = 10  # s[c] = b
    CALL = 11  # a(words[b]) & words[b + 1] == words[b + 2]
    ABSENT = 12  # b not in dict s[a]
    NONE_OF = 13  # s[a] is none of the objects in words b: see `object_words`
    DIFFER = 14  # s[a] is not s[b]
    QUIET = 15  # *x == *y, or WORDS of what follows in words a, *y being set: [x, y, n, …]
    APART = 16  # tensor s[a], laid out as words b say (`apart_words`), is apart from spans: words c
    GETATTR = 17  # s[c] = getattr(a, b), which something else keeps alive; fails where that raises
    UNEQUAL = 18  # the slots that words a tell of hold different objects: see `slot_words`
    NO_MEETING = 19  # nor do two tensors in slots share memory: see `meeting_words`
    AT_LEAST = 20  # *(s[a] + b) >= c


@dataclass
class Program:
    """What must hold for ``callable`` to be picked; ``keep`` owns every object named by address."""

    code: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def add(self, op: Op, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Appends an instruction."""
        self.code += (int(op), a, b, c)

    def data(self, words: Sequence[int]) -> int:
        """Appends operands; their index among the words."""
        start = len(self.words)
        self.words += words
        return start


def apart_words(tensor: torch.Tensor) -> list[int] | None:
    """Operands of `Op.APART` for tensors laid out like ``tensor``: where torch keeps a tensor's
    memory, bytes of an element and of all."""
    layout, (start, end) = torch_api.storage_layout(), torch_api.span(tensor)
    if layout is None:
        return None
    words = [layout.handle, layout.storage, layout.memory, layout.offset]
    return [*words, tensor.element_size(), end - start]


def tensor_words(tensor: torch.Tensor, sizes: Sequence[int | None],
                 strides: Sequence[int | None] | None) -> list[int]:  # fmt: skip
    """Operands of `Op.TENSOR` for tensors like ``tensor`` with these sizes and strides."""
    layout = tensor_layout()
    assert layout is not None
    impl = read_word(id(tensor) + layout.handle)
    words = [
        id(type(tensor)),
        read_word(impl + layout.key_set),
        torch_api.scalar_type(tensor.dtype),
    ]
    words += [-1 if tensor.device.index is None else tensor.device.index]
    words += [int(tensor.requires_grad), len(sizes)]
    for extents in (sizes, strides if strides is not None else [None] * len(sizes)):
        words += [ANY if n is None else n for n in extents]
    return words


@dataclass(frozen=True)
class TensorLayout:
    """Byte offsets: of the C++ tensor in its Python object, of the key set in its impl."""

    handle: int
    key_set: int


@lru_cache(maxsize=1)
def tensor_layout() -> TensorLayout | None:
    """Found by looking for known values in sample tensors; None if they are not there, or torch
    lacks a function that the check calls."""
    try:
        for name in TORCH_CALLS:
            torch_api.c_symbol(name)
    except LookupError:
        return None
    samples = [torch.ones(3), torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.int8)]
    samples.append(torch.ones(2, dtype=torch.complex64).conj())
    handles, keys = set(range(16, 64, 8)), set(range(0, 320, 8))
    for sample in samples:
        impl, key_set = torch_api.impl_address(sample), torch_api.raw_key_set(sample)
        handles &= {o for o in range(16, 64, 8) if read_word(id(sample) + o) == impl}
        keys &= {o for o in range(0, 320, 8) if read_word(impl + o) == key_set}
    if len(handles) != 1 or len(keys) != 1:
        return None
    return TensorLayout(handles.pop(), keys.pop())
