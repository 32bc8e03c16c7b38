"""Memory of large results, used again once nobody has them (docs/decisions/031-result-memory.md).

An allocator gives large blocks back to the system, and every page of a new one costs a fault and
is cleared. A training step asks for the same sizes step after step, so memory of results stays
with the process. A new block is made only when free ones of as many bytes have been given back: the
process never holds more than was in use at one time.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import torch

from jitney import torch_api

#: Bytes from which results come from here: the allocator keeps smaller ones mostly itself, and the
#: 2 or 3 microseconds of a lease would show.
KEPT_BYTES = 6 << 20

Key = tuple[torch.dtype, int]


class _Block:
    """``count`` elements of memory in ``base``, which no one outside sees; ``leased`` grows with
    every lease."""

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self.key: Key = (dtype, count)
        self.base = torch_api.empty_tensor((count,), (1,), dtype)
        self.leased = 0
        self._storage = self.base.untyped_storage()
        self._address, self.bytes = self._memory()
        self._owners = self._count_owners()

    def _memory(self) -> tuple[int, int]:
        return self._storage.data_ptr(), self._storage.nbytes()

    def _count_owners(self) -> tuple[int, int]:
        return torch_api.owners_of(self._storage), sys.getrefcount(self._storage)

    def is_free(self) -> bool:
        """Whether no tensor of a result and no Python object has this memory."""
        return self._count_owners() == self._owners

    def is_whole(self) -> bool:
        """Whether it has the memory it was made with and may be resized: owners may resize it,
        share it with other processes or pin it by a NumPy array."""
        same = self._memory() == (self._address, self.bytes)
        return same and self._storage.resizable()


class ResultMemory:
    """Blocks by their elements. Any thread may lease: a block is taken off its list while it is
    looked at, so that nobody else finds it."""

    def __init__(self) -> None:
        self._blocks: dict[Key, list[_Block]] = {}
        self._leases = itertools.count(1)

    def lessor(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], torch.Tensor]:
        """A function that gives, as `torch.empty_strided` does, tensors with undefined elements; no
        size is 0."""
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        blocks = self._blocks.setdefault((dtype, count), [])

        def lease() -> torch.Tensor:
            block = _take(blocks)
            if block is None:
                self._give_back(count * dtype.itemsize)
                block = _Block(dtype, count)
            block.leased = next(self._leases)
            result = torch_api.same_memory(block.base, shape, strides)
            blocks.append(block)
            return result

        return lease

    def forget(self) -> None:
        """Gives all free memory back. What is in use goes back when its owners are gone."""
        for blocks in list(self._blocks.values()):
            blocks.clear()

    def _give_back(self, size: int) -> None:
        """Drops free blocks, those not leased for longest first, until they are ``size`` bytes."""
        every = [block for blocks in list(self._blocks.values()) for block in list(blocks)]
        for block in sorted((b for b in every if b.is_free()), key=lambda b: b.leased):
            if size <= 0:
                return
            try:
                self._blocks[block.key].remove(block)
            except ValueError:  # another thread took it
                continue
            size -= block.bytes


def _take(blocks: list[_Block]) -> _Block | None:
    """The free block leased last, off its list; blocks that lost their memory are dropped."""
    found, passed = None, []
    while found is None:
        try:
            block = blocks.pop()
        except IndexError:
            break
        if not block.is_free():
            passed.append(block)
        elif block.is_whole():
            found = block
    blocks.extend(reversed(passed))
    return found


#: The process's.
KEPT = ResultMemory()
