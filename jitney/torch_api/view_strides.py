"""The strides that eager gives a view of other sizes, also where sizes are symbols.

Fake tensors leave a dimension of size 1 the stride it had; eager gives it the next larger step of
what it is joined to. By that stride a convolution tells whether its image is channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from jitney.torch_api.symbols import (
    free_symbols,
    hint_of,
    is_symbolic,
    surely_positive,
    symbol_expression,
)


def has_odd_step(tensor: torch.Tensor) -> bool:
    """Whether a dimension of size 1 may have another stride than in a row-major tensor. Adds no
    guard."""
    return not lies_in_rows(tensor) and any(same(n, 1) for n in tensor.shape)


def lies_in_rows(tensor: torch.Tensor) -> bool:
    """Whether the strides are those of a row-major tensor, also where a size is 1. Adds no
    guard."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not same(stride, step):
            return False
        step = step * size
    return True


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are the same expression."""
    if type(a) is int and type(b) is int:
        return a == b
    return bool(_written(a) == _written(b))


def _written(size: Any) -> Any:
    return size if type(size) is int else symbol_expression(size)


def rows_viewed(base: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor | None:
    """``base`` seen in ``sizes`` where it lies in rows, is not empty, and is known to have as many
    elements; None otherwise. Adds no guard: torch's own way, which splits and joins dimensions one
    by one and asks about each, takes seconds where sizes are sums and quotients."""
    if not is_symbolic(base) or any(type(n) is int and n < 1 for n in (*base.shape, *sizes)):
        return None
    if not same(math.prod(base.shape), math.prod(sizes)) or not _is_filled_in_rows(base):
        return None
    return base.as_strided(tuple(sizes), _steps_of(sizes), base.storage_offset())


def as_asked(base: torch.Tensor, view: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """A view of ``base`` in ``sizes`` that has them as they were written. Fakes write what is left
    of a dimension that they split: ``s // (s // 4)`` for 4, and so on with each view of a view."""
    if not is_symbolic(view) or not has_examples(base, view):
        return view
    if any(type(n) is int and n < 0 for n in sizes):  # to be found out
        return view
    if all(map(same, view.shape, sizes)):
        return view
    strides = _steps_of(sizes) if _is_filled_in_rows(base) else view.stride()
    return base.as_strided(tuple(sizes), strides, view.storage_offset())


def expanded(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """``view``, an expanded ``base``, with eager's strides of new dimensions of size 1: those of
    a row of what follows, 0 where that is repeated or ``base`` has no dimension. (Torch's Python
    version, which runs where sizes are symbols, knows the strides of ``base`` only.) Adds no
    guard."""
    new = view.dim() - base.dim()
    strides = list(view.stride())
    for at in reversed(range(new)):
        if same(view.shape[at], 1):
            strides[at] = view.shape[at + 1] * strides[at + 1] if at + 1 < view.dim() else 0
    if all(map(same, strides, view.stride())):
        return view
    return base.as_strided(view.shape, strides, view.storage_offset())


def _steps_of(sizes: Sequence[Any]) -> list[Any]:
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]


def _is_filled_in_rows(tensor: torch.Tensor) -> bool:
    """Whether a tensor surely has elements, and lies in rows then. Adds no guard."""
    step: Any = 1
    padded: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not (same(stride, step) or same(stride, padded)):
            return False
        step, padded = step * size, padded * torch.sym_max(size, 1)  # which torch writes, too
    return all(map(surely_positive, tensor.shape))


_FORMATS = {torch.channels_last: (1, 3, 2, 0), torch.channels_last_3d: (1, 4, 3, 2, 0)}


def is_contiguous(tensor: torch.Tensor, memory_format: Any = torch.contiguous_format) -> bool:
    """`Tensor.is_contiguous`. Comparisons of symbols become guards; torch takes a tensor that is
    not sure to be contiguous for one that is not."""
    in_rows = memory_format not in _FORMATS
    order = range(tensor.dim())[::-1] if in_rows else _FORMATS[memory_format]
    if len(order) != tensor.dim() or not (is_symbolic(tensor) and has_examples(tensor)):
        return tensor.is_contiguous(memory_format=memory_format)
    if in_rows and any(size == 0 for size in tensor.shape):
        return True
    step: Any = 1
    for d in order:
        if tensor.shape[d] != 1:
            if tensor.stride(d) != step:
                return False
            step = step * tensor.shape[d]
    return True


def lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same strides, not counting dimensions of size 1."""
    pairs = zip(a.stride(), b.stride(), a.shape, strict=True)
    return all(same(x, y) or same(size, 1) for x, y, size in pairs)


def has_examples(*tensors: torch.Tensor) -> bool:
    """Whether sizes and strides can be compared: none comes from data."""
    sizes = [n for t in tensors for n in (*t.shape, *t.stride()) if type(n) is not int]
    return all(n.node.has_hint() for n in sizes if free_symbols(n))


def can_be_viewed(base: torch.Tensor, sizes: Sequence[Any]) -> bool:
    """Whether eager can view ``base`` in ``sizes``, as they are now. With a height of 1, fakes find
    a view of channels-last memory where eager finds none. Adds no guard."""
    if not has_odd_step(base):
        return True
    shape, strides = map(hint_of, base.shape), map(hint_of, base.stride())
    try:
        torch.empty_strided([*shape], [*strides], device="meta").view([*map(hint_of, sizes)])
    except RuntimeError:
        return False
    return True


def view_strides(base: torch.Tensor, sizes: Sequence[Any]) -> list[Any] | None:
    """Eager's strides for a view of ``base`` in ``sizes``, none of them 0. None where there is no
    such view. Comparisons of symbols become guards."""
    strides: list[Any] = [0] * len(sizes)
    at, step = len(sizes) - 1, base.stride(-1)
    joined: Any = 1
    seen: Any = 1
    for d in reversed(range(base.dim())):
        joined = joined * base.shape[d]
        if d and (base.shape[d - 1] == 1 or base.stride(d - 1) == joined * step):
            continue  # one run of memory with the dimension before it
        while at >= 0 and (seen < joined or sizes[at] == 1):
            strides[at] = seen * step
            seen = seen * sizes[at]
            at -= 1
        if seen != joined:
            return None
        if d:
            step, joined, seen = base.stride(d - 1), 1, 1
    return strides if at < 0 else None
