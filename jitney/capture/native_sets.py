"""Sets of addresses for guard programs: hash tables of objects, sorted spans of memory.

An optimizer has thousands of tensors; comparing each gradient with each of them would take longer
than the step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

FACTOR, SHIFT = 0x9E3779B97F4A7C15, 32  # place of v: its product with the factor, shifted
_WORD = (1 << 64) - 1


def _size_for(count: int) -> int:
    """A power of two with as much room again."""
    return 1 << max(2, (2 * count).bit_length())


def object_words(addresses: Iterable[int]) -> list[int]:
    """Operands of `Op.NONE_OF`: a mask, then the table, its empty places 0."""
    known = set(addresses)
    mask = _size_for(len(known)) - 1
    table = [0] * (mask + 1)
    for address in known:
        place = (address * FACTOR & _WORD) >> SHIFT & mask
        while table[place]:
            place = place + 1 & mask
        table[place] = address
    return [mask, *table]


def scratch_for(count: int) -> tuple[int, ctypes.Array[ctypes.c_int64]]:
    """A mask, and memory in which `Op.UNEQUAL` notes so many addresses: the number of the run, then
    for each place an address and the run that noted it."""
    size = _size_for(count)
    return size - 1, (ctypes.c_int64 * (1 + 2 * size))()


def span_words(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Operands of `Op.APART`: how many stretches of memory the spans are, where each begins, and
    where each ends, in order."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return [len(starts), *starts, *ends]


def slot_words(slots: Sequence[int], mask: int, memory: int) -> list[int]:
    """Operands of `Op.UNEQUAL`."""
    return [len(slots), mask, memory, *slots]


def meeting_words(
    layout: Sequence[int], tensors: Sequence[tuple[int, int, int]]
) -> tuple[list[int], ctypes.Array[ctypes.c_int64]]:
    """Operands of `Op.NO_MEETING`, and memory in which it sorts: how many tensors, that memory,
    where torch keeps a tensor's, and for each its slot, bytes of an element and of all."""
    memory = (ctypes.c_int64 * (2 * len(tensors)))()
    words = [len(tensors), ctypes.addressof(memory), *layout]
    return words + [word for one in tensors for word in one], memory
