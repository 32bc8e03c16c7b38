"""Views (`as_strided`) of more memory than a graph is given."""

from __future__ import annotations

from typing import Any

import torch

from jitney.errors import Unsupported


def refuse_reach(view: torch.Tensor, root: torch.Tensor) -> None:
    """Raises Unsupported where a view goes past the elements of the tensor that we are given, into
    memory around it."""
    (first, last), (begin, end) = _places(view), _places(root)
    known = all(type(place) is int for place in (first, last, begin, end))
    if known and 0 not in view.shape and (first < begin or last > end):
        raise Unsupported("as-strided", "as_strided reaches past its tensor, into a larger one")


def _places(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The first and the last element, as places in the storage."""
    begin = tensor.storage_offset()
    steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return begin, begin + sum(steps)
