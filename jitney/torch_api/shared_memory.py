"""Operands that share elements with what an op writes to: what comes of it depends on the order in
which elements are read and written, which a graph without mutations does not keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import torch

from jitney.torch_api.storages import memory_of
from jitney.torch_api.symbols import hint_of

#: Steps of a search for a shared element, behind which there is taken to be one.
_STEPS = 2000
#: In training they update their running statistics, whatever their schemas say.
_BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_STATISTICS = ("running_mean", "running_var")


def shares_with_written(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an ATen call of fakes writes elements that it also reads by another operand: at
    other places, or at the same ones where the op does not go element by element; or writes them
    by two operands. (Eager refuses most of these.)"""
    trains = op._opname in _BATCH_NORMS and args[5]
    writes = _STATISTICS if trains else _writes(op)
    if not writes:
        return False
    in_place = torch.Tag.pointwise in op.tags or op._opname == "copy_"
    names = (a.name for a in op._schema.arguments)
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    if op._opname.startswith("_foreach"):
        return _members_share(arguments, writes)
    written = [value for name in writes if (value := arguments.get(name)) is not None]
    read = [value for name, value in arguments.items() if name not in writes]
    if any(_share(a, b) for x, y in combinations(written, 2) for a, b in _pairs(x, y)):
        return True
    for one in written:
        for other in read:
            for a, b in _pairs(one, other):
                if _share(a, b) and not (_is_alike(a, b) and in_place):
                    return True
    return False


@lru_cache(maxsize=4096)
def _writes(op: Any) -> tuple[str, ...]:
    arguments = op._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def _pairs(one: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for a in one if isinstance(one, list | tuple) else (one,):
        for b in other if isinstance(other, list | tuple) else (other,):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                yield a, b


@dataclass(frozen=True)
class _Member:
    """A tensor of a list, its place there, and the bytes of its memory that it spans."""

    tensor: torch.Tensor
    place: int
    written: bool
    start: int
    end: int


def _members_share(arguments: Mapping[str, Any], writes: tuple[str, ...]) -> bool:
    """`shares_with_written` of an op that goes through lists, one place after the other: what it
    writes at one place may be read or written at no other, and at its own as it is."""
    found: dict[int, list[_Member]] = {}
    for name, value in arguments.items():
        for place, tensor in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                if _is_known(tensor):
                    memory = found.setdefault(memory_of(tensor), [])
                    memory.append(_member(tensor, place, name in writes))
    return any(_meet(members) for members in found.values() if len(members) > 1)


def _member(tensor: torch.Tensor, place: int, written: bool) -> _Member:
    pairs = zip(map(hint_of, tensor.shape), map(hint_of, tensor.stride()), strict=True)
    start, reach = hint_of(tensor.storage_offset()), sum((n - 1) * step for n, step in pairs)
    size = tensor.itemsize
    return _Member(tensor, place, written, start * size, (start + reach + 1) * size)


def _meet(members: list[_Member]) -> bool:
    members = sorted(members, key=lambda member: member.start)
    for at, a in enumerate(members):
        for b in members[at + 1 :]:
            if b.start >= a.end:
                break
            own = a.place == b.place and _is_alike(a.tensor, b.tensor)
            twice = a.written and b.written
            if (a.written or b.written) and (twice or not own) and _share(a.tensor, b.tensor):
                return True
    return False


def _is_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    offsets = hint_of(a.storage_offset()), hint_of(b.storage_offset())
    extents = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=False)
    same = offsets[0] == offsets[1] and a.dim() == b.dim() and a.dtype is b.dtype
    return same and all(hint_of(one) == hint_of(other) for one, other in extents)


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they have an element in common; if their dtypes have different widths, whether their
    memory overlaps."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return False
    if memory_of(a) != memory_of(b):
        return False
    if not (_is_known(a) and _is_known(b)):
        return False
    if a.itemsize != b.itemsize:
        return True
    ranges: dict[int, tuple[int, int]] = {}
    for tensor, up, down in ((a, 1, 0), (b, 0, 1)):
        for size, stride in zip(map(hint_of, tensor.shape), map(hint_of, tensor.stride())):
            if size == 0:
                return False
            low, high = ranges.get(stride, (0, 0))
            ranges[stride] = low - down * (size - 1), high + up * (size - 1)
    terms = sorted([(s, *ends) for s, ends in ranges.items() if s and any(ends)], reverse=True)
    return _reaches(terms, hint_of(b.storage_offset()) - hint_of(a.storage_offset()), [_STEPS])


def _is_known(tensor: torch.Tensor) -> bool:
    """Whether every size is a number or has an example, which is asked without a guard."""
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(size, int) or size.node.has_hint() for size in sizes)


def _reaches(terms: list[tuple[int, int, int]], target: int, steps: list[int]) -> bool:
    """Whether a sum of multiples of strides, each within its bounds, is ``target``."""
    if not terms or steps[0] <= 0:
        return target == 0 or steps[0] <= 0
    steps[0] -= 1
    (stride, low, high), rest = terms[0], terms[1:]
    least = sum(s * first for s, first, _ in rest)
    most = sum(s * last for s, _, last in rest)
    first = max(low, -((most - target) // stride))
    last = min(high, (target - least) // stride)
    return any(_reaches(rest, target - n * stride, steps) for n in range(first, last + 1))
