"""Results on memory that no other result has: tensors of their own, not views of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from jitney.loops.ir import Buffer, Output
from jitney.torch_api import is_view, same_memory


def own_results(outputs: Sequence[Any], buffers: Iterable[Buffer]) -> frozenset[str]:
    """The buffers made in a call that exactly one result consists of."""
    made = {b.name for b in buffers if b.kind not in ("input", "constant")}
    named = Counter(out.view.buffer for out in outputs if isinstance(out, Output))
    return frozenset(name for name, count in named.items() if count == 1 and name in made)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as a tensor that is no view. A program runs without grad, and autograd refuses
    writes with gradients to views made then; but callers may write to results."""
    if not is_view(tensor):
        return tensor
    return same_memory(tensor, tensor.shape, tensor.stride())
